#include "core/replay/engine_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/strings.h"

namespace warmpath {
namespace {

std::size_t BlocksOf(const EngineModelOptions& options) {
  return options.blocks != 0 ? options.blocks : options.profile.kv_tokens / options.block_size;
}

std::uint64_t BlocksNeeded(const EngineRequest& request, std::uint32_t block_size) {
  const std::uint64_t tokens = std::uint64_t{request.prompt_tokens} + request.output_tokens;
  return (tokens + block_size - 1) / block_size;
}

absl::Status Invalid(std::string_view field, std::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), " ", ToAbsl(problem)));
}

bool IsNonNegative(double value) { return std::isfinite(value) && value >= 0; }
bool IsPositive(double value) { return std::isfinite(value) && value > 0; }

}  // namespace

absl::StatusOr<EngineProfile> FindEngineProfile(std::string_view name) {
  for (const EngineProfile& profile : {kProfile32b, kProfile8b}) {
    if (profile.name == name) return profile;
  }
  return absl::InvalidArgumentError(absl::StrCat("profile \"", ToAbsl(name), "\" is unknown: use ",
                                                 ToAbsl(kProfile32b.name), " or ",
                                                 ToAbsl(kProfile8b.name)));
}

absl::Status ValidateEngineModelOptions(const EngineModelOptions& options) {
  const EngineProfile& p = options.profile;
  if (options.block_size == 0) return Invalid("block_size", "must be at least 1 token");
  if (options.step_token_budget == 0) return Invalid("step_token_budget", "must be at least 1");
  if (options.max_sequences == 0) return Invalid("max_sequences", "must be at least 1");
  if (!IsPositive(p.prefill_tokens_per_s) || !IsPositive(p.ctx_half_tokens)) {
    return Invalid("profile", "needs positive prefill_tokens_per_s and ctx_half_tokens");
  }
  if (!IsNonNegative(p.step_base_s) || !IsNonNegative(p.decode_s) ||
      !IsNonNegative(p.context_token_s)) {
    return Invalid("profile", "has a step, decode or context time that is negative");
  }
  const std::size_t blocks = BlocksOf(options);
  if (blocks == 0) return Invalid("blocks", "must be at least 1, or 0 for the profile's capacity");
  if (blocks >= std::numeric_limits<BlockSlot>::max()) {
    return Invalid("blocks", "must be below 4294967295");
  }
  return absl::OkStatus();
}

EngineModel::EngineModel(const EngineModelOptions& options)
    : options_(options),
      cache_(BlocksOf(options), options.duplicates, [this](const BlockCache::Eviction& eviction) {
        result_.events.push_back({.kind = CacheEvent::Kind::kEvicted,
                                  .key = eviction.key,
                                  .copies_left = eviction.copies_left});
      }) {}

absl::Status EngineModel::Add(EngineRequest request) {
  if (request.prompt_tokens == 0) return Invalid("prompt_tokens", "must be at least 1");
  if (request.output_tokens == 0) return Invalid("output_tokens", "must be at least 1");
  const std::uint64_t needed = BlocksNeeded(request, options_.block_size);
  if (needed > cache_.capacity()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt_tokens + output_tokens = ",
        std::uint64_t{request.prompt_tokens} + request.output_tokens, " exceeds the KV cache of ",
        CapacityTokens(), " tokens: shorten the request"));
  }
  if (!ids_.insert(request.id).second) {
    return absl::AlreadyExistsError(absl::StrCat("request id ", request.id, " is in flight"));
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->request = std::move(request);
  waiting_.push_back(std::move(sequence));
  return absl::OkStatus();
}

bool EngineModel::Cancel(std::uint64_t id) {
  if (ids_.erase(id) == 0) return false;
  const auto is_it = [id](const std::unique_ptr<Sequence>& s) { return s->request.id == id; };
  if (const auto it = std::find_if(running_.begin(), running_.end(), is_it); it != running_.end()) {
    cache_.Release((*it)->table);
    running_.erase(it);
  } else {
    waiting_.erase(std::find_if(waiting_.begin(), waiting_.end(), is_it));
  }
  return true;
}

const StepResult& EngineModel::Step() {
  result_.seconds = 0;
  result_.prefill_tokens = 0;
  result_.decodes = 0;
  result_.admitted.clear();
  result_.produced.clear();
  result_.first_token.clear();
  result_.finished.clear();
  result_.events.clear();
  ending_ = 0;
  if (idle()) return result_;

  budget_ = options_.step_token_budget;
  result_.seconds = options_.profile.step_base_s;
  ScheduleDecodes();
  SchedulePrefills();
  AdmitWaiting();
  RetireFinished();
  ending_ = result_.finished.size();
  return result_;
}

void EngineModel::ScheduleDecodes() {
  const EngineProfile& profile = options_.profile;
  for (const auto& sequence : running_) {
    if (budget_ == 0) return;
    if (sequence->produced == 0) continue;
    --budget_;
    ++result_.decodes;
    Advance(*sequence, 1);
    result_.seconds += profile.decode_s + profile.context_token_s * sequence->computed;
    ProduceToken(*sequence);
  }
}

void EngineModel::SchedulePrefills() {
  for (const auto& sequence : running_) {
    if (budget_ == 0) return;
    if (sequence->computed < sequence->request.prompt_tokens) RunPrefillChunk(*sequence);
  }
}

void EngineModel::AdmitWaiting() {
  const std::uint32_t block_size = options_.block_size;
  while (budget_ > 0 && !waiting_.empty() && running_.size() < options_.max_sequences) {
    Sequence& sequence = *waiting_.front();
    const EngineRequest& request = sequence.request;
    const std::size_t most_hits = (request.prompt_tokens - 1) / block_size;
    const std::span<const BlockKey> keys(request.keys);
    const std::size_t hits =
        cache_.MatchPrefix(keys.first(std::min(most_hits, request.keys.size())));
    if (!cache_.Acquire(keys.first(hits), BlocksNeeded(request, block_size) - hits,
                        &sequence.table)) {
      return;
    }
    sequence.full_blocks = static_cast<std::uint32_t>(hits);
    sequence.computed = static_cast<std::uint32_t>(hits) * block_size;
    if (request.given_tokens > sequence.computed) {
      Advance(sequence, request.given_tokens - sequence.computed);
    }
    result_.admitted.push_back({.id = request.id, .cached_tokens = sequence.computed});
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    RunPrefillChunk(sequence);
  }
}

void EngineModel::RunPrefillChunk(Sequence& sequence) {
  const std::uint32_t begin = sequence.computed;
  const std::uint32_t tokens = std::min(budget_, sequence.request.prompt_tokens - begin);
  budget_ -= tokens;
  result_.prefill_tokens += tokens;
  const double mean_context = begin + tokens / 2.0;
  result_.seconds += tokens / options_.profile.prefill_tokens_per_s *
                     (1 + mean_context / options_.profile.ctx_half_tokens);
  Advance(sequence, tokens);
  if (sequence.computed == sequence.request.prompt_tokens) ProduceToken(sequence);
}

void EngineModel::Advance(Sequence& sequence, std::uint32_t tokens) {
  sequence.computed += tokens;
  const std::uint32_t full = sequence.computed / options_.block_size;
  const std::vector<BlockKey>& keys = sequence.request.keys;
  bool extends_last_event = false;
  for (std::uint32_t i = sequence.full_blocks; i < full && i < keys.size(); ++i) {
    const BlockCache::StoreResult stored = cache_.Store(sequence.table[i], keys[i]);
    sequence.table[i] = stored.slot;
    if (stored.is_new) {
      if (extends_last_event) {
        ++result_.events.back().block_count;
      } else {
        result_.events.push_back({.kind = CacheEvent::Kind::kStored,
                                  .request_id = sequence.request.id,
                                  .first_block = i,
                                  .block_count = 1});
      }
    }
    extends_last_event = stored.is_new;
  }
  sequence.full_blocks = full;
}

void EngineModel::ProduceToken(Sequence& sequence) {
  const std::uint64_t id = sequence.request.id;
  ++sequence.produced;
  result_.produced.push_back(id);
  if (sequence.produced == 1) result_.first_token.push_back(id);
  if (sequence.produced == sequence.request.output_tokens) result_.finished.push_back(id);
}

void EngineModel::RetireFinished() {
  if (result_.finished.empty()) return;
  std::erase_if(running_, [this](const std::unique_ptr<Sequence>& sequence) {
    if (sequence->produced < sequence->request.output_tokens) return false;
    cache_.Release(sequence->table);
    ids_.erase(sequence->request.id);
    return true;
  });
}

}  // namespace warmpath
