// The one description of warmpath-router's configuration. Each setting stands here (or, for pools
// and the fleet, in core/fleet/fleet.h) with its default, and once in schema.cc with its name,
// bounds, unit and meaning. Loading, printing the effective configuration and
// docs/configuration.md all walk the same description, so that they can not disagree.
#ifndef WARMPATH_SERVER_CONFIG_SCHEMA_H_
#define WARMPATH_SERVER_CONFIG_SCHEMA_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/fleet/fleet.h"

namespace warmpath {

struct ServerSection {
  std::string grpc_address = "0.0.0.0:9002";
  std::string http_address = "0.0.0.0:9090";
  std::string pick_address;  // empty: see PickAddress
  std::string tls_cert;      // empty: plaintext
  std::string tls_key;
  std::string tls_client_ca;
  std::uint32_t max_message_bytes = 8u << 20;
  std::uint32_t max_prompt_tokens = 1'000'000;
  std::uint32_t max_streams_per_connection = 4096;
  std::uint32_t max_worker_streams = 10'000;
  std::uint32_t max_pick_streams = 4096;
  std::uint64_t grpc_memory_bytes = 512ull << 20;
  std::uint32_t heavy_threads = 2;
  std::uint32_t heavy_queue = 256;
  std::uint32_t heavy_prompt_tokens = 65'536;
  std::uint32_t http_threads = 2;
  std::uint32_t http_connections = 4096;
  std::uint64_t http_memory_bytes = 256ull << 20;
  absl::Duration http_idle_timeout = absl::Seconds(75);
  absl::Duration http_request_timeout = absl::Seconds(10);
  absl::Duration keepalive_time = absl::Seconds(30);
  absl::Duration keepalive_timeout = absl::Seconds(10);
  absl::Duration min_ping_interval = absl::Seconds(10);
  absl::Duration drain_delay = absl::Seconds(2);
  absl::Duration drain_deadline = absl::Seconds(15);
};

struct ExtProcSection {
  bool enabled = true;
  bool fallbacks = true;
  std::string request_body_mode = "full_duplex_streamed";
  std::string response_body_mode = "full_duplex_streamed";
  std::string default_model;
  bool usage_accounting = false;
  bool decision_metadata = false;
  std::uint64_t max_body_bytes = 6ull << 20;
  std::uint64_t max_buffered_bytes = 512ull << 20;
  std::uint32_t max_streams = 10'000;
  absl::Duration request_timeout = absl::Minutes(5);
};

struct LogSection {
  std::string level = "info";
};

struct MetricsSection {
  std::uint32_t max_workers = 2000;
};

struct RouterConfig {
  ServerSection server;
  ExtProcSection ext_proc;
  LogSection log;
  MetricsSection metrics;
  FleetConfig fleet = {.warm_up = absl::Seconds(10)};
};

struct FieldInfo {
  std::string_view name;
  std::string_view unit;  // empty: none
  std::string_view doc;   // one or two sentences
  // Another way to say what other fields say: read and documented, never printed as in force.
  bool other_name = false;
};

struct IntegerBounds {
  std::uint64_t min = 0;
  std::uint64_t max = std::numeric_limits<std::uint64_t>::max();
};

struct DurationBounds {
  absl::Duration min;
  absl::Duration max;
};

// Walks the description in a fixed order. A loader writes through the pointers, a printer reads.
class ConfigVisitor {
 public:
  // INVALID_ARGUMENT with the remedy.
  using TextCheck = std::function<absl::Status(std::string_view)>;

  virtual ~ConfigVisitor() = default;

  virtual void Text(const FieldInfo& info, const TextCheck& check, std::string* value) = 0;
  virtual void TextList(const FieldInfo& info, const TextCheck& check,
                        std::vector<std::string>* value) = 0;
  virtual void Choice(const FieldInfo& info, const std::vector<std::string>& choices,
                      std::string* value) = 0;
  virtual void Integer(const FieldInfo& info, const IntegerBounds& bounds,
                       std::uint64_t* value) = 0;
  virtual void Time(const FieldInfo& info, const DurationBounds& bounds, absl::Duration* value) = 0;
  virtual void Switch(const FieldInfo& info, bool* value) = 0;

  virtual void BeginSection(const FieldInfo& info) = 0;
  virtual void EndSection() = 0;

  // For rules that no single field can check: whether the section being visited was given a field
  // of that name, and what is wrong with it, with the remedy. Only a loader knows.
  virtual bool Given(std::string_view /*name*/) const { return false; }
  virtual void Refuse(std::string_view /*name*/, std::string_view /*message*/) {}

  // A list of sections: `size` is what there is; the answer is how many items to visit. Each item
  // is visited between BeginItem and EndItem.
  virtual std::size_t BeginItems(const FieldInfo& info, std::size_t size) = 0;
  virtual void BeginItem(std::size_t index) = 0;
  virtual void EndItem() = 0;
  virtual void EndItems() = 0;

  // A duration whose name ends in _ms: written as a plain number.
  void Milliseconds(const FieldInfo& info, const DurationBounds& bounds, absl::Duration* value) {
    std::uint64_t number = static_cast<std::uint64_t>(absl::ToInt64Milliseconds(*value));
    Integer(info,
            {static_cast<std::uint64_t>(absl::ToInt64Milliseconds(bounds.min)),
             static_cast<std::uint64_t>(absl::ToInt64Milliseconds(bounds.max))},
            &number);
    *value = absl::Milliseconds(static_cast<std::int64_t>(number));
  }
  void Integer(const FieldInfo& info, const IntegerBounds& bounds, std::uint32_t* value) {
    std::uint64_t wide = *value;
    Integer(info, bounds, &wide);
    *value = static_cast<std::uint32_t>(wide);
  }
};

// Walks the whole configuration. REQUIRES: bounds of 32-bit fields fit into 32 bits (they do).
void VisitConfig(ConfigVisitor& visitor, RouterConfig& config);

// "host:port" with a numeric port; a host that is an IPv6 address stands in brackets.
absl::Status CheckAddress(std::string_view address);

// Where picks over HTTP are served: pick_address, else the host of http_address and the port above
// its own (a free one if that is 0). REQUIRES: the addresses were checked.
std::string PickAddress(const ServerSection& server);

// "8MiB" for whole binary multiples of 1,024 and up, else plain digits.
std::string FormatBytes(std::uint64_t bytes);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_CONFIG_SCHEMA_H_
