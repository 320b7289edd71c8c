#include "core/replay/trace.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
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

std::vector<std::int32_t> NextTurns(const std::vector<TraceRow>& rows) {
  std::vector<std::int32_t> previous(rows.size(), kNoRequest);
  absl::flat_hash_set<std::uint64_t> seen;
  // Rows without a next turn yet, by their number of full blocks and the last one's id.
  absl::flat_hash_map<std::pair<std::size_t, std::uint64_t>, std::vector<std::int32_t>> open;
  for (std::size_t j = 0; j < rows.size(); ++j) {
    const std::vector<std::uint64_t>& ids = rows[j].hash_ids;
    const auto fresh = static_cast<std::size_t>(
        std::find_if(ids.begin(), ids.end(), [&](std::uint64_t id) { return !seen.contains(id); }) -
        ids.begin());
    if (fresh > 0 && fresh < ids.size()) {
      std::vector<std::int32_t>& holders = open[{fresh, ids[fresh - 1]}];
      const auto it = std::find_if(holders.rbegin(), holders.rend(), [&](std::int32_t k) {
        const TraceRow& row = rows[static_cast<std::size_t>(k)];
        return rows[j].input_length >= std::uint64_t{row.input_length} + row.output_length;
      });
      if (it != holders.rend()) {
        previous[j] = *it;
        holders.erase(std::next(it).base());
      }
    }
    seen.insert(ids.begin(), ids.end());
    const std::size_t full = rows[j].input_length / kTraceBlockTokens;
    if (full > 0) open[{full, ids[full - 1]}].push_back(static_cast<std::int32_t>(j));
  }
  return previous;
}

namespace {

// Ids of different copies never meet, nor those of answers: outputs get contents of their own.
constexpr std::uint64_t kCopyContent = std::uint64_t{1} << 49;
constexpr std::uint64_t kOutputContent = std::uint64_t{1} << 48;
constexpr std::uint32_t kMaxCopies = 4'096;

static_assert(kShownBlockTokens == kTraceBlockTokens);

// The blocks of `next` that are inside prompt and answer of `row`.
std::vector<std::uint64_t> ShownBlocks(const TraceRow& row, const TraceRow& next,
                                       std::uint64_t base) {
  const std::size_t first = row.input_length / kTraceBlockTokens;
  const std::size_t end = (std::size_t{row.input_length} + row.output_length) / kTraceBlockTokens;
  std::vector<std::uint64_t> blocks;
  for (std::size_t i = first; i < end && i < next.hash_ids.size(); ++i) {
    blocks.push_back(base + next.hash_ids[i]);
  }
  return blocks;
}

}  // namespace

absl::StatusOr<Workload> WorkloadFromTrace(const std::vector<TraceRow>& rows,
                                           const TraceWorkloadOptions& options) {
  if (rows.empty()) return absl::InvalidArgumentError("the trace has no rows");
  if (options.copies == 0 || options.copies > kMaxCopies) {
    return absl::InvalidArgumentError(
        absl::StrCat("copies: ", options.copies, "; must be 1 to ", kMaxCopies));
  }
  std::vector<std::int32_t> previous(rows.size(), kNoRequest);
  if (options.next_turns) previous = NextTurns(rows);
  std::vector<std::int32_t> next(rows.size(), kNoRequest);
  for (std::size_t j = 0; j < rows.size(); ++j) {
    if (previous[j] != kNoRequest) {
      next[static_cast<std::size_t>(previous[j])] = static_cast<std::int32_t>(j);
    }
  }

  Random random(options.seed);
  Workload workload;
  for (std::uint32_t copy = 0; copy < options.copies; ++copy) {
    const std::uint64_t base = copy * kCopyContent;
    const auto first_index = static_cast<std::int32_t>(copy * rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const TraceRow& row = rows[i];
      ReplayRequest request;
      request.arrival_s =
          row.timestamp_ms / 1000 + copy * options.copy_shift_s + random.Unit() * options.bucket_s;
      std::uint32_t left = row.input_length;
      for (const std::uint64_t id : row.hash_ids) {
        const std::uint32_t take = std::min(left, kTraceBlockTokens);
        request.prompt.push_back({.content = base + id, .tokens = take});
        left -= take;
      }
      request.output_content = base + kOutputContent + i;
      request.output_tokens = std::max<std::uint32_t>(1, row.output_length);
      if (previous[i] != kNoRequest) request.previous_turn = first_index + previous[i];
      if (next[i] != kNoRequest) {
        request.shown_blocks = ShownBlocks(row, rows[static_cast<std::size_t>(next[i])], base);
      }
      workload.requests.push_back(std::move(request));
    }
  }
  // By arrival, without the rows that ask for nothing.
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    if (!workload.requests[i].prompt.empty()) order.push_back(i);
  }
  if (order.empty()) return absl::InvalidArgumentError("the trace has no row with a prompt");
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return workload.requests[a].arrival_s < workload.requests[b].arrival_s;
  });
  std::vector<std::int32_t> position(workload.requests.size(), kNoRequest);
  std::vector<ReplayRequest> sorted;
  for (const std::size_t i : order) {
    position[i] = static_cast<std::int32_t>(sorted.size());
    ReplayRequest request = std::move(workload.requests[i]);
    if (request.previous_turn != kNoRequest) {
      request.previous_turn = position[static_cast<std::size_t>(request.previous_turn)];
    }
    sorted.push_back(std::move(request));
  }
  workload.requests = std::move(sorted);
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
  if (options.copies > 1) absl::StrAppend(&workload.description, ", ", options.copies, " copies");
  return workload;
}

}  // namespace warmpath
