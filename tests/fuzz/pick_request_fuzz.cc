// Any bytes as a PickRequest: what our reader makes of them, over what it read before, is what
// protobuf makes of them.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/pick_request_reader.h"
#include "warmpath/v1/router.pb.h"

namespace {

// Not assert: must also hold in optimised builds.
void Require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  warmpath::v1::PickRequest expected;
  const bool ok = expected.ParseFromArray(data, static_cast<int>(size));
  warmpath::v1::PickRequest read;
  for (std::uint32_t id = 0; id < 3; ++id) read.mutable_tokens()->add_ids(id);
  read.set_model("earlier");
  Require(warmpath::ReadPickRequest(bytes, &read) == ok);
  if (ok) Require(read.SerializeAsString() == expected.SerializeAsString());
  return 0;
}
