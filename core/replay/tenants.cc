#include "core/replay/tenants.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/random.h"
#include "core/base/strings.h"

namespace warmpath {
namespace {

// Contents of the batch tenant: away from those of traces and of the generator.
constexpr std::uint64_t kBatchContent = std::uint64_t{1} << 62;
constexpr std::size_t kMostBatchRequests = 1'000'000;

absl::Status Invalid(std::string_view field, std::string_view must) {
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), ": must be ", ToAbsl(must)));
}

absl::Status Check(const TenantOptions& o) {
  if (o.tenants == 0 || o.tenants > 1'000) return Invalid("tenants", "1 to 1000");
  if (!(o.zipf >= 0 && o.zipf <= 10)) return Invalid("zipf", "0 to 10");
  if (!(o.batch_share >= 0 && o.batch_share <= 100)) return Invalid("batch_share", "0 to 100");
  if (o.batch_prompt == 0 || o.batch_prompt > 1'000'000) {
    return Invalid("batch_prompt", "1 to 1000000 tokens");
  }
  if (o.batch_output == 0 || o.batch_output > 1'000'000) {
    return Invalid("batch_output", "1 to 1000000 tokens");
  }
  if (o.batch_burst == 0 || o.batch_burst > 10'000) return Invalid("batch_burst", "1 to 10000");
  if (!(o.engines > 0)) return Invalid("engines", "above 0");
  return absl::OkStatus();
}

void LabelConversations(const TenantOptions& o, Random& random, Workload* workload) {
  std::vector<double> sums;
  for (std::uint32_t i = 0; i < o.tenants; ++i) {
    sums.push_back((sums.empty() ? 0 : sums.back()) + std::pow(i + 1, -o.zipf));
  }
  for (ReplayRequest& request : workload->requests) {
    const std::int32_t before = request.after != kNoRequest ? request.after : request.previous_turn;
    if (before != kNoRequest) {
      request.tenant = workload->requests[static_cast<std::size_t>(before)].tenant;
      continue;
    }
    const auto it = std::upper_bound(sums.begin(), sums.end() - 1, random.Unit() * sums.back());
    request.tenant = static_cast<std::uint32_t>(it - sums.begin());
  }
}

// By arrival again, with what points backwards following.
void Sort(Workload* workload) {
  std::vector<std::size_t> order(workload->requests.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return workload->requests[a].arrival_s < workload->requests[b].arrival_s;
  });
  std::vector<std::int32_t> position(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) position[order[i]] = static_cast<std::int32_t>(i);
  const auto follow = [&](std::int32_t& index) {
    if (index != kNoRequest) index = position[static_cast<std::size_t>(index)];
  };
  std::vector<ReplayRequest> sorted;
  sorted.reserve(order.size());
  for (const std::size_t i : order) {
    ReplayRequest& request = sorted.emplace_back(std::move(workload->requests[i]));
    follow(request.after);
    follow(request.previous_turn);
    for (PromptSegment& segment : request.prompt) follow(segment.answer_of);
  }
  workload->requests = std::move(sorted);
}

}  // namespace

absl::Status AssignTenants(const TenantOptions& options, Workload* workload) {
  if (absl::Status status = Check(options); !status.ok()) return status;
  Random random(options.seed ^ 0x7e7a7e7a7e7aULL);
  LabelConversations(options, random, workload);
  if (options.batch_share == 0) return absl::OkStatus();
  const double length = options.batch_prompt;
  const double prefill_s = length / options.profile.prefill_tokens_per_s *
                           (1 + length / 2 / options.profile.ctx_half_tokens);
  const double between_s =
      prefill_s * options.batch_burst / (options.batch_share * options.engines);
  if (workload->duration_s / between_s * options.batch_burst > kMostBatchRequests) {
    return Invalid("batch_share", "smaller: it makes over a million requests");
  }
  std::uint64_t content = kBatchContent;
  for (double at = random.Exponential(between_s); at < workload->duration_s;
       at += random.Exponential(between_s)) {
    for (std::uint32_t i = 0; i < options.batch_burst; ++i) {
      ReplayRequest& request = workload->requests.emplace_back();
      request.arrival_s = at;
      request.prompt = {{.content = content++, .tokens = options.batch_prompt}};
      request.output_content = content++;
      request.output_tokens = options.batch_output;
      request.tenant = options.tenants;
    }
  }
  Sort(workload);
  Summarise(workload->block_size, workload);
  return absl::OkStatus();
}

}  // namespace warmpath
