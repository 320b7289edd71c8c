// All metrics of the router in one table, and a Collectable that reads the core's own counters at
// scrape: nothing is counted twice, and a pick pays for no metric library.
#ifndef WARMPATH_SERVER_METRICS_H_
#define WARMPATH_SERVER_METRICS_H_

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>
#include <prometheus/metric_type.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/histogram.h"
#include "core/fleet/fleet.h"
#include "server/ext_proc/stats.h"

namespace warmpath {

struct MetricSpec {
  std::string_view name;
  prometheus::MetricType type;
  std::string_view labels;  // names, comma-separated; empty: none
  std::string_view help;
};

// Every metric there is, in the order of /metrics and of docs/metrics.md.
std::span<const MetricSpec> MetricTable();

// docs/metrics.md.
std::string MetricsDocument();

// Thread-safe.
class RouterMetrics final : public prometheus::Collectable {
 public:
  struct Sources {
    const Fleet* fleet = nullptr;
    std::function<HistogramSnapshot()> pick_seconds;
    std::function<HistogramSnapshot()> lock_hold_seconds;
    std::function<std::size_t()> worker_streams;
    std::function<std::size_t()> pick_streams;
    std::function<std::size_t()> ext_proc_streams;
    const ExtProcStats* ext_proc = nullptr;
    std::function<std::size_t()> heavy_queue;
    std::uint32_t max_workers = 2000;  // with series of their own
  };

  // What the sources refer to must outlive this object.
  explicit RouterMetrics(Sources sources) : sources_(std::move(sources)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const Sources sources_;
};

}  // namespace warmpath

#endif  // WARMPATH_SERVER_METRICS_H_
