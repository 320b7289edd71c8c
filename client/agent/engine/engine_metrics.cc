#include "client/agent/engine/engine_metrics.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/strings.h"

namespace warmpath {
namespace {

// More ranks, models and bytes per name than any engine has.
constexpr std::size_t kMaxRanks = 1024;
constexpr std::size_t kMaxModels = 4096;
constexpr std::size_t kMaxNameBytes = 1024;

using Labels = std::vector<std::pair<std::string_view, std::string>>;

struct Sample {
  std::string_view name;
  Labels labels;
  double value = 0;

  std::optional<std::string_view> Label(std::string_view key) const {
    for (const auto& [k, v] : labels) {
      if (k == key) return v;
    }
    return std::nullopt;
  }
};

std::string_view TrimLeft(std::string_view s) {
  const std::size_t at = s.find_first_not_of(" \t");
  return at == std::string_view::npos ? std::string_view() : s.substr(at);
}

// Reads {a="b",..}; *rest starts after '{' and ends after '}'. Escapes: \\ \" \n.
bool ParseLabels(std::string_view* rest, Labels* labels) {
  while (true) {
    *rest = TrimLeft(*rest);
    if (rest->empty()) return false;
    if (rest->front() == '}') {
      rest->remove_prefix(1);
      return true;
    }
    if (rest->front() == ',') {
      rest->remove_prefix(1);
      continue;
    }
    const std::size_t equals = rest->find('=');
    if (equals == std::string_view::npos) return false;
    const std::string_view key = rest->substr(0, equals);
    *rest = TrimLeft(rest->substr(equals + 1));
    if (rest->empty() || rest->front() != '"') return false;
    rest->remove_prefix(1);
    std::string value;
    while (true) {
      if (rest->empty()) return false;
      char c = rest->front();
      rest->remove_prefix(1);
      if (c == '"') break;
      if (c == '\\') {
        if (rest->empty()) return false;
        c = rest->front() == 'n' ? '\n' : rest->front();
        rest->remove_prefix(1);
      }
      value.push_back(c);
    }
    labels->emplace_back(key, std::move(value));
  }
}

bool ParseValue(std::string_view rest, double* value) {
  rest = TrimLeft(rest);
  // A time stamp may follow.
  const std::string_view number = rest.substr(0, rest.find_first_of(" \t\r"));
  return absl::SimpleAtod(ToAbsl(number), value) && std::isfinite(*value);
}

bool IsWanted(std::string_view name) {
  return name == "vllm:num_requests_running" || name == "vllm:num_requests_waiting" ||
         name == "vllm:kv_cache_usage_perc" || name == "vllm:gpu_cache_usage_perc" ||
         name == "vllm:cache_config_info" || name == "process_start_time_seconds";
}

bool ParseLine(std::string_view line, Sample* sample) {
  line = TrimLeft(line);
  if (line.empty() || line.front() == '#') return false;
  const std::size_t end = line.find_first_of("{ \t");
  if (end == std::string_view::npos) return false;
  sample->name = line.substr(0, end);
  if (!IsWanted(sample->name)) return false;
  std::string_view rest = line.substr(end);
  sample->labels.clear();
  if (rest.front() == '{') {
    rest.remove_prefix(1);
    if (!ParseLabels(&rest, &sample->labels)) return false;
  }
  return ParseValue(rest, &sample->value);
}

// Series of one rank that differ in other labels (model_name) add up.
void AddCount(double value, std::optional<std::uint32_t>* sum) {
  if (value < 0) return;
  const double total = std::min(value + (sum->has_value() ? **sum : 0), 4e9);
  *sum = static_cast<std::uint32_t>(total);
}

void AddCacheConfig(const Sample& sample, RankMetrics* rank) {
  // All values are strings; "None" stands for unknown and fails to parse.
  std::uint32_t block_size = 0;
  if (const auto label = sample.Label("block_size");
      label && absl::SimpleAtoi(ToAbsl(*label), &block_size) && block_size > 0) {
    rank->block_size = block_size;
  }
  std::uint64_t blocks = 0;
  if (const auto label = sample.Label("num_gpu_blocks");
      label && absl::SimpleAtoi(ToAbsl(*label), &blocks) && blocks > 0) {
    rank->num_blocks = blocks;
  }
}

void AddSample(const Sample& sample, EngineMetrics* metrics) {
  if (sample.name == "process_start_time_seconds") {
    metrics->process_start = sample.value;
    return;
  }
  Rank rank = 0;
  if (const auto label = sample.Label("engine")) {
    // A label that is no number names no rank of ours.
    if (!absl::SimpleAtoi(ToAbsl(*label), &rank)) return;
  }
  if (metrics->ranks.size() >= kMaxRanks && !metrics->ranks.contains(rank)) return;
  RankMetrics& into = metrics->ranks[rank];
  if (sample.name == "vllm:num_requests_running") {
    AddCount(sample.value, &into.running);
  } else if (sample.name == "vllm:num_requests_waiting") {
    AddCount(sample.value, &into.waiting);
  } else if (sample.name == "vllm:cache_config_info") {
    AddCacheConfig(sample, &into);
  } else {  // Both names of the KV use; engines before 2025-11 have the older one.
    const double usage = std::clamp(sample.value, 0.0, 1.0);
    into.kv_usage = std::max(usage, into.kv_usage.value_or(0));
  }
}

}  // namespace

RankMetrics EngineMetrics::ForRank(Rank rank, std::uint32_t rank_count) const {
  if (rank_count == 1 && ranks.size() == 1) return ranks.begin()->second;
  const auto it = ranks.find(rank);
  return it == ranks.end() ? RankMetrics() : it->second;
}

EngineMetrics ParseEngineMetrics(std::string_view text) {
  EngineMetrics metrics;
  Sample sample;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (ParseLine(line, &sample)) AddSample(sample, &metrics);
  }
  return metrics;
}

absl::StatusOr<ServedModels> ParseServedModels(std::string_view json) {
  simdjson::dom::parser parser;
  simdjson::dom::array data;
  const auto bad = [](std::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("/v1/models: ", ToAbsl(what), "; set the model's name (--model) instead"));
  };
  if (parser.parse(json.data(), json.size())["data"].get(data) != simdjson::SUCCESS) {
    return bad("no list named \"data\"");
  }
  ServedModels models;
  for (const simdjson::dom::element entry : data) {
    std::string_view id;
    if (entry["id"].get(id) != simdjson::SUCCESS || id.empty() || id.size() > kMaxNameBytes) {
      continue;
    }
    if (models.base.size() + models.loras.size() >= kMaxModels) break;
    std::string_view parent;
    const bool lora = entry["parent"].get(parent) == simdjson::SUCCESS;
    (lora ? models.loras : models.base).emplace_back(id);
  }
  if (models.base.empty()) return bad("no base model in the list");
  return models;
}

std::string ParseVersion(std::string_view json) {
  simdjson::dom::parser parser;
  std::string_view version;
  if (parser.parse(json.data(), json.size())["version"].get(version) != simdjson::SUCCESS ||
      version.size() > kMaxNameBytes) {
    return "";
  }
  return std::string(version);
}

}  // namespace warmpath
