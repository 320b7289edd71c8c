#include "tests/fakes/engine/metrics_text.h"

#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/strings.h"

namespace warmpath::engine {
namespace {

std::string EscapeLabel(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '\n') {
      out.append("\\n");
      continue;
    }
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(c);
  }
  return out;
}

// One family with a sample per rank.
class Page {
 public:
  explicit Page(const Engine& engine) : model_(EscapeLabel(engine.options().models.base)) {
    for (std::size_t r = 0; r < engine.rank_count(); ++r) {
      stats_.push_back(engine.rank(r).Stats());
    }
  }

  template <typename F>
  void Family(std::string_view name, std::string_view type, std::string_view help, F&& value) {
    Header(name, type, help);
    for (std::size_t r = 0; r < stats_.size(); ++r) {
      absl::StrAppend(&text_, ToAbsl(name), "{engine=\"", r, "\",model_name=\"", model_, "\"} ",
                      absl::StrFormat("%.17g", static_cast<double>(value(stats_[r]))), "\n");
    }
  }

  void Header(std::string_view name, std::string_view type, std::string_view help) {
    absl::StrAppend(&text_, "# HELP ", ToAbsl(name), " ", ToAbsl(help), "\n# TYPE ", ToAbsl(name),
                    " ", ToAbsl(type), "\n");
  }

  std::string& text() { return text_; }
  const std::vector<RankStats>& stats() const { return stats_; }

 private:
  const std::string model_;
  std::vector<RankStats> stats_;
  std::string text_;
};

}  // namespace

std::string MetricsText(const Engine& engine) {
  Page page(engine);
  page.Family("vllm:num_requests_running", "gauge", "Requests in model execution batches.",
              [](const RankStats& s) { return s.running; });
  page.Family("vllm:num_requests_waiting", "gauge", "Requests waiting to be processed.",
              [](const RankStats& s) { return s.waiting; });
  page.Family("vllm:kv_cache_usage_perc", "gauge",
              "KV-cache usage, 1 is all of it; cached blocks that nobody uses count as free.",
              [](const RankStats& s) {
                return 1.0 - static_cast<double>(s.free_blocks) / static_cast<double>(s.blocks);
              });
  page.Family("vllm:prefix_cache_queries_total", "counter",
              "Prompt tokens that were looked up in the prefix cache.",
              [](const RankStats& s) { return s.prefix_query_tokens; });
  page.Family("vllm:prefix_cache_hits_total", "counter",
              "Prompt tokens that were found in the prefix cache.",
              [](const RankStats& s) { return s.prefix_hit_tokens; });
  page.Family("vllm:prompt_tokens_total", "counter", "Prompt tokens of finished requests.",
              [](const RankStats& s) { return s.prompt_tokens; });
  page.Family("vllm:generation_tokens_total", "counter", "Generated tokens.",
              [](const RankStats& s) { return s.generation_tokens; });
  page.Family("vllm:request_success_total", "counter", "Finished requests.",
              [](const RankStats& s) { return s.finished; });

  page.Header("vllm:cache_config_info", "gauge", "Information of the KV cache configuration.");
  for (std::size_t r = 0; r < page.stats().size(); ++r) {
    absl::StrAppend(&page.text(), "vllm:cache_config_info{block_size=\"",
                    engine.options().rank.model.block_size,
                    "\",enable_prefix_caching=\"True\",engine=\"", r, "\",num_gpu_blocks=\"",
                    page.stats()[r].blocks, "\"} 1\n");
  }
  page.Header("process_start_time_seconds", "gauge",
              "Start time of the process since unix epoch in seconds.");
  absl::StrAppendFormat(&page.text(), "process_start_time_seconds %.3f\n",
                        absl::ToDoubleSeconds(engine.start_time() - absl::UnixEpoch()));
  return std::move(page.text());
}

}  // namespace warmpath::engine
