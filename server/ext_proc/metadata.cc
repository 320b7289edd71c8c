#include "server/ext_proc/metadata.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "core/base/strings.h"
#include "warmpath/v1/router.pb.h"

namespace warmpath {
namespace {

using ::envoy::config::core::v3::Metadata;
using ::google::protobuf::Struct;
using ::google::protobuf::Value;

const Value* Find(const Metadata& metadata, std::string_view space, std::string_view key) {
  if (metadata.filter_metadata().empty()) return nullptr;
  const auto filter = metadata.filter_metadata().find(std::string(space));
  if (filter == metadata.filter_metadata().end()) return nullptr;
  const auto field = filter->second.fields().find(std::string(key));
  return field == filter->second.fields().end() ? nullptr : &field->second;
}

void AddEndpoints(std::string_view list, v1::PickRequest* pick) {
  for (absl::string_view part : absl::StrSplit(ToAbsl(list), ',')) {
    part = absl::StripAsciiWhitespace(part);
    if (!part.empty()) pick->add_subset(part.data(), part.size());
  }
}

Value& ValueAt(std::string_view space, std::string_view key, Struct* metadata) {
  Struct& filter = *(*metadata->mutable_fields())[std::string(space)].mutable_struct_value();
  return (*filter.mutable_fields())[std::string(key)];
}

}  // namespace

void ReadSubset(const Metadata& metadata, v1::PickRequest* pick) {
  const Value* value = Find(metadata, kSubsetNamespace, kSubsetKey);
  if (value == nullptr) return;
  pick->set_subset_present(true);
  pick->clear_subset();
  if (value->has_string_value()) {
    AddEndpoints(value->string_value(), pick);
    return;
  }
  for (const Value& item : value->list_value().values()) AddEndpoints(item.string_value(), pick);
}

std::string_view ReadServed(const Metadata& metadata) {
  const Value* value = Find(metadata, kEndpointNamespace, kServedKey);
  return value == nullptr ? std::string_view() : std::string_view(value->string_value());
}

void SetMetadata(std::string_view space, std::string_view key, std::string value,
                 Struct* metadata) {
  ValueAt(space, key, metadata).set_string_value(std::move(value));
}

void SetMetadata(std::string_view space, std::string_view key, double value, Struct* metadata) {
  ValueAt(space, key, metadata).set_number_value(value);
}

}  // namespace warmpath
