#include "core/replay/workload_generator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/random.h"
#include "core/base/status.h"

namespace warmpath {
namespace {

absl::Status CheckRange(std::string_view name, TokenRange range) {
  if (range.low >= 1 && range.low <= range.high && range.high <= 1'000'000) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(name), ": [", range.low, ", ", range.high,
                                                 "] must be ordered and within 1 to 1,000,000"));
}

absl::Status Validate(const GeneratorOptions& o) {
  WARMPATH_RETURN_IF_ERROR(CheckRange("user", o.user));
  WARMPATH_RETURN_IF_ERROR(CheckRange("answer", o.answer));
  WARMPATH_RETURN_IF_ERROR(CheckRange("agent_context", o.agent_context));
  WARMPATH_RETURN_IF_ERROR(CheckRange("tool_result", o.tool_result));
  WARMPATH_RETURN_IF_ERROR(CheckRange("agent_answer", o.agent_answer));
  if (o.chats > 0 && (o.system_prompts == 0 || o.turns == 0)) {
    return absl::InvalidArgumentError("system_prompts and turns must be at least 1 with chats");
  }
  if (o.agent_loops > 0 && (o.siblings == 0 || o.agent_steps == 0)) {
    return absl::InvalidArgumentError(
        "siblings and agent_steps must be at least 1 with agent_loops");
  }
  if (o.chats == 0 && o.agent_loops == 0) {
    return absl::InvalidArgumentError("chats and agent_loops are both 0: nothing to generate");
  }
  const std::uint64_t total =
      std::uint64_t{o.chats} * o.turns + std::uint64_t{o.agent_loops} * o.siblings * o.agent_steps;
  if (total > 10'000'000) {
    return absl::InvalidArgumentError(
        absl::StrCat("the options make ", total, " requests; 10,000,000 is the limit"));
  }
  if (!(o.cold_utilisation > 0) || !(o.speed_factor > 0) || o.engines == 0 || o.block_size == 0) {
    return absl::InvalidArgumentError(
        "cold_utilisation, speed_factor, engines and block_size must be above 0");
  }
  return absl::OkStatus();
}

// One line of requests where each has to wait for the one before: a chat, or one sibling's steps.
struct Line {
  double start = 0;     // as a share of one gap, [0, 1)
  double offset_s = 0;  // of all its requests: siblings do not move in lockstep
  std::vector<ReplayRequest> requests;
  std::vector<double> jitter;  // of each request, share of a gap
};

class Generator {
 public:
  explicit Generator(const GeneratorOptions& options) : o_(options), random_(options.seed) {}

  Workload Run() {
    for (std::uint32_t i = 0; i < o_.chats; ++i) AddChat();
    for (std::uint32_t i = 0; i < o_.agent_loops; ++i) AddLoop();
    return Place();
  }

 private:
  std::uint32_t Draw(TokenRange range) {
    return range.low + static_cast<std::uint32_t>(random_.Below(range.high - range.low + 1));
  }

  std::uint32_t DrawSystemPrompt() {
    if (zipf_.empty()) {
      double sum = 0;
      for (std::uint32_t i = 0; i < o_.system_prompts; ++i) {
        sum += 1.0 / std::pow(i + 1, o_.zipf_exponent);
        zipf_.push_back(sum);
      }
    }
    const double u = random_.Unit() * zipf_.back();
    const auto it = std::upper_bound(zipf_.begin(), zipf_.end(), u);
    return static_cast<std::uint32_t>(
        std::min<std::size_t>(static_cast<std::size_t>(it - zipf_.begin()), zipf_.size() - 1));
  }

  // `opening` is what the line begins with; each step adds new tokens and gets an answer.
  // answer_of is set relative to the line here and made absolute by Place().
  Line MakeLine(const PromptSegment& opening, double start, std::uint32_t steps, TokenRange added,
                TokenRange answer) {
    Line line{.start = start};
    std::vector<PromptSegment> prompt = {opening};
    for (std::uint32_t step = 0; step < steps; ++step) {
      prompt.push_back({.content = next_content_++, .tokens = Draw(added)});
      ReplayRequest request{
          .prompt = prompt, .output_content = next_content_++, .output_tokens = Draw(answer)};
      prompt.push_back({.content = request.output_content,
                        .tokens = request.output_tokens,
                        .answer_of = static_cast<std::int32_t>(step)});
      line.requests.push_back(std::move(request));
      line.jitter.push_back(step == 0 ? 0 : (random_.Unit() - 0.5) * 0.6);
    }
    return line;
  }

  void AddChat() {
    const PromptSegment system{.content = kSystemContent + DrawSystemPrompt(),
                               .tokens = o_.system_tokens};
    lines_.push_back(MakeLine(system, random_.Unit(), o_.turns, o_.user, o_.answer));
  }

  void AddLoop() {
    const PromptSegment context{.content = next_content_++, .tokens = Draw(o_.agent_context)};
    const double start = random_.Unit();
    for (std::uint32_t i = 0; i < o_.siblings; ++i) {
      Line line = MakeLine(context, start, o_.agent_steps, o_.tool_result, o_.agent_answer);
      line.offset_s = random_.Unit() * o_.sibling_spread_s;
      lines_.push_back(std::move(line));
    }
  }

  // Spreads each line's requests evenly over the run, sorts by arrival and links them.
  Workload Place() {
    Workload workload;
    workload.description = Describe();
    for (Line& line : lines_) {
      for (ReplayRequest& request : line.requests) workload.requests.push_back(request);
    }
    workload.duration_s = ColdPrefillSeconds(workload, o_.profile) / o_.speed_factor / o_.engines /
                          o_.cold_utilisation;
    workload.requests.clear();

    struct Placed {
      std::size_t line;
      std::size_t step;
      double arrival;
    };
    std::vector<Placed> order;
    for (std::size_t l = 0; l < lines_.size(); ++l) {
      const Line& line = lines_[l];
      const double gap = workload.duration_s / static_cast<double>(line.requests.size());
      for (std::size_t s = 0; s < line.requests.size(); ++s) {
        const double at = (line.start + static_cast<double>(s) + line.jitter[s]) * gap;
        order.push_back({l, s, std::max(0.0, at) + line.offset_s});
      }
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const Placed& a, const Placed& b) { return a.arrival < b.arrival; });
    std::vector<std::vector<std::int32_t>> index(lines_.size());
    for (const Placed& placed : order) {
      ReplayRequest request = std::move(lines_[placed.line].requests[placed.step]);
      request.arrival_s = placed.arrival;
      std::vector<std::int32_t>& earlier = index[placed.line];
      if (!earlier.empty()) request.after = earlier.back();
      for (PromptSegment& segment : request.prompt) {
        if (segment.answer_of != kNoRequest) {
          segment.answer_of = earlier[static_cast<std::size_t>(segment.answer_of)];
        }
      }
      earlier.push_back(static_cast<std::int32_t>(workload.requests.size()));
      workload.requests.push_back(std::move(request));
    }
    Summarise(o_.block_size, &workload);
    return workload;
  }

  std::string Describe() const {
    return absl::StrCat("seed ", o_.seed, ": ", o_.system_prompts, " system prompts of ",
                        o_.system_tokens, " tokens (Zipf ", o_.zipf_exponent, "), ", o_.chats,
                        " chats of ", o_.turns, " turns (user ", o_.user.low, "-", o_.user.high,
                        ", answer ", o_.answer.low, "-", o_.answer.high, " tokens), ",
                        o_.agent_loops, " agent loops of ", o_.siblings, " siblings with ",
                        o_.agent_steps, " steps (tool results ", o_.tool_result.low, "-",
                        o_.tool_result.high, " tokens)");
  }

  static constexpr std::uint64_t kSystemContent = 1;
  const GeneratorOptions& o_;
  Random random_;
  std::uint64_t next_content_ = 1'000'000;
  std::vector<double> zipf_;
  std::vector<Line> lines_;
};

}  // namespace

absl::StatusOr<Workload> GenerateWorkload(const GeneratorOptions& options) {
  WARMPATH_RETURN_IF_ERROR(Validate(options));
  return Generator(options).Run();
}

}  // namespace warmpath
