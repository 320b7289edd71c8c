// warmpathctl's commands: each asks one router and prints a table or, with --json, JSON.
#ifndef WARMPATH_CLIENT_CTL_COMMANDS_H_
#define WARMPATH_CLIENT_CTL_COMMANDS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "warmpath/v1/admin.grpc.pb.h"
#include "warmpath/v1/router.grpc.pb.h"

namespace warmpath::ctl {

struct Context {
  v1::Admin::StubInterface* admin = nullptr;
  v1::Router::StubInterface* router = nullptr;
  bool json = false;
  absl::Duration timeout = absl::Seconds(10);
  std::ostream* out = nullptr;
};

absl::Status Workers(const Context& context, const std::string& pool);

// `explain` scores without reserving. A real pick is released at once unless `keep`, so that trying
// it by hand leaves no load behind.
absl::Status Pick(const Context& context, const v1::PickRequest& request, bool explain, bool keep);

absl::Status IndexStats(const Context& context, const std::string& pool);

struct DumpArgs {
  std::string worker;
  std::uint32_t rank = 0;
  std::string tier = "gpu";       // gpu, host, disk, external
  std::string source = "events";  // events, in_flight, predicted
};
absl::Status IndexDump(const Context& context, const DumpArgs& args);

absl::Status Drain(const Context& context, const std::string& worker, bool undo);

absl::Status Config(const Context& context);

}  // namespace warmpath::ctl

#endif  // WARMPATH_CLIENT_CTL_COMMANDS_H_
