// Uses the installed client library as a proxy would, without a router.
#include <cstdio>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "warmpath/client.h"

int main() {
  if (warmpath::client::Client::Create({}).status().code() != absl::StatusCode::kInvalidArgument) {
    std::puts("an empty address was accepted");
    return 1;
  }
  // Port 1 of loopback: nobody listens there.
  auto client = warmpath::client::Client::Create({.address = "127.0.0.1:1"});
  if (!client.ok()) {
    std::puts(client.status().ToString().c_str());
    return 1;
  }
  const absl::Status status = (*client)->WaitConnected(absl::Milliseconds(200));
  std::puts(status.ToString().c_str());
  return status.code() == absl::StatusCode::kDeadlineExceeded ? 0 : 1;
}
