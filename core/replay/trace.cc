#include "core/replay/trace.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "simdjson.h"

namespace warmpath {
namespace {

// A block costs 8 bytes here; longer prompts than this are no prompts.
constexpr std::uint64_t kMaxLength = 100'000'000;

absl::StatusOr<std::uint32_t> ReadLength(const simdjson::dom::element& row, const char* field) {
  std::uint64_t value = 0;
  if (row[field].get(value) != simdjson::SUCCESS || value > kMaxLength) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " must be a whole number of at most ", kMaxLength));
  }
  return static_cast<std::uint32_t>(value);
}

absl::StatusOr<TraceRow> ParseRow(simdjson::dom::parser* parser, const std::string& line) {
  simdjson::dom::element json;
  if (parser->parse(line).get(json) != simdjson::SUCCESS) {
    return absl::InvalidArgumentError("this is no JSON object");
  }
  TraceRow row;
  if (json["timestamp"].get(row.timestamp_ms) != simdjson::SUCCESS || row.timestamp_ms < 0) {
    return absl::InvalidArgumentError("timestamp must be a number of milliseconds from 0");
  }
  WARMPATH_ASSIGN_OR_RETURN(row.input_length, ReadLength(json, "input_length"));
  WARMPATH_ASSIGN_OR_RETURN(row.output_length, ReadLength(json, "output_length"));
  simdjson::dom::array ids;
  if (json["hash_ids"].get(ids) != simdjson::SUCCESS) {
    return absl::InvalidArgumentError("hash_ids must be a list of whole numbers");
  }
  for (const simdjson::dom::element id : ids) {
    std::uint64_t value = 0;
    if (id.get(value) != simdjson::SUCCESS) {
      return absl::InvalidArgumentError("hash_ids must be a list of whole numbers from 0");
    }
    row.hash_ids.push_back(value);
  }
  const std::uint64_t blocks =
      (std::uint64_t{row.input_length} + kTraceBlockTokens - 1) / kTraceBlockTokens;
  if (row.hash_ids.size() != blocks) {
    return absl::InvalidArgumentError(absl::StrCat("hash_ids has ", row.hash_ids.size(),
                                                   " ids but input_length ", row.input_length,
                                                   " makes ", blocks, " blocks of 512"));
  }
  return row;
}

}  // namespace

absl::StatusOr<std::vector<TraceRow>> ReadTrace(const std::string& path, std::size_t limit) {
  std::ifstream in(path);
  if (!in) {
    return absl::NotFoundError(absl::StrCat("can not read the trace ", path));
  }
  simdjson::dom::parser parser;
  std::vector<TraceRow> rows;
  std::string line;
  for (std::size_t number = 1; (limit == 0 || rows.size() < limit) && std::getline(in, line);
       ++number) {
    if (line.empty()) continue;
    auto row = ParseRow(&parser, line);
    if (!row.ok()) return Annotate(row.status(), absl::StrCat(path, " line ", number));
    rows.push_back(*std::move(row));
  }
  if (rows.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the trace ", path, " has no rows"));
  }
  return rows;
}

absl::StatusOr<Workload> WorkloadFromTrace(const std::vector<TraceRow>& rows,
                                           const TraceWorkloadOptions& options) {
  if (rows.empty()) return absl::InvalidArgumentError("the trace has no rows");
  Random random(options.seed);
  Workload workload;
  // Outputs get contents of their own, above every id of the trace.
  constexpr std::uint64_t kOutputContent = std::uint64_t{1} << 48;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const TraceRow& row = rows[i];
    if (row.input_length == 0) continue;
    ReplayRequest request;
    request.arrival_s = row.timestamp_ms / 1000 + random.Unit() * options.bucket_s;
    std::uint32_t left = row.input_length;
    for (const std::uint64_t id : row.hash_ids) {
      const std::uint32_t take = std::min(left, kTraceBlockTokens);
      request.prompt.push_back({.content = id, .tokens = take});
      left -= take;
    }
    request.output_content = kOutputContent + i;
    request.output_tokens = std::max<std::uint32_t>(1, row.output_length);
    workload.requests.push_back(std::move(request));
  }
  std::stable_sort(
      workload.requests.begin(), workload.requests.end(),
      [](const ReplayRequest& a, const ReplayRequest& b) { return a.arrival_s < b.arrival_s; });
  const double first = workload.requests.front().arrival_s;
  const double span = workload.requests.back().arrival_s - first;
  double scale = 1;
  if (options.requests_per_s > 0 && span > 0) {
    scale = static_cast<double>(workload.requests.size()) / options.requests_per_s / span;
  }
  for (ReplayRequest& request : workload.requests) {
    request.arrival_s = (request.arrival_s - first) * scale;
  }
  workload.duration_s = workload.requests.back().arrival_s;
  Summarise(options.block_size, &workload);
  workload.description = absl::StrCat(workload.requests.size(), " requests of a trace");
  return workload;
}

}  // namespace warmpath
