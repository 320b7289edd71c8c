// What the proxy's other filters tell an endpoint picker, and the other way round.
#ifndef WARMPATH_SERVER_EXT_PROC_METADATA_H_
#define WARMPATH_SERVER_EXT_PROC_METADATA_H_

#include <string>
#include <string_view>

#include "server/ext_proc/names.h"

namespace warmpath {

namespace v1 {
class PickRequest;
}  // namespace v1

// Sets subset_present and subset when the metadata has the subset's key: as a list of strings or as
// one string with commas. A value of another kind counts as an empty list: to ignore it would open
// the whole pool to a request that must not go there.
void ReadSubset(const envoy::config::core::v3::Metadata& metadata, v1::PickRequest* pick);

// Who served, "ip:port"; empty when it is not said. Points into `metadata`.
std::string_view ReadServed(const envoy::config::core::v3::Metadata& metadata);

// Sets namespace_name.key = value.
void SetMetadata(std::string_view namespace_name, std::string_view key, std::string value,
                 google::protobuf::Struct* metadata);
void SetMetadata(std::string_view namespace_name, std::string_view key, double value,
                 google::protobuf::Struct* metadata);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_EXT_PROC_METADATA_H_
