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
  if (options.host_blocks >= std::numeric_limits<BlockSlot>::max()) {
    return Invalid("host_blocks", "must be below 4294967295");
  }
  if (options.host_blocks > 0 && !IsPositive(options.host_copy_tokens_per_s)) {
    return Invalid("host_copy_tokens_per_s", "must be positive with host_blocks");
  }
  return absl::OkStatus();
}

EngineModel::EngineModel(const EngineModelOptions& options)
    : options_(options),
      cache_(BlocksOf(options), options.duplicates, [this](const BlockCache::Eviction& eviction) {
        result_.events.push_back({.kind = CacheEvent::Kind::kEvicted,
                                  .key = eviction.key,
                                  .copies_left = eviction.copies_left});
        if (host_ == nullptr || eviction.copies_left > 0) return;
        host_->Offload(eviction.key);
        TakeHostChanges();
      }) {
  if (options.host_blocks == 0) return;
  host_ = std::make_unique<HostTier>(options.host_blocks, options.block_size,
                                     options.host_copy_tokens_per_s, &host_changes_);
}

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
    if (host_ != nullptr) host_->CancelCopy(id);
    cache_.Release((*it)->table);
    running_.erase(it);
  } else {
    waiting_.erase(std::find_if(waiting_.begin(), waiting_.end(), is_it));
  }
  return true;
}

bool EngineModel::ClearCache() {
  if (!cache_.Clear()) return false;
  if (host_ != nullptr) host_->Clear();
  return true;
}

const StepResult& EngineModel::Step() {
  const double seconds_before = std::exchange(result_.seconds, 0);
  result_.prefill_tokens = 0;
  result_.decodes = 0;
  result_.admitted.clear();
  result_.produced.clear();
  result_.first_token.clear();
  result_.finished.clear();
  result_.events.clear();
  ending_ = 0;
  if (idle()) return result_;

  if (host_ != nullptr) EndCopies(seconds_before);
  budget_ = options_.step_token_budget;
  result_.seconds = options_.profile.step_base_s;
  ScheduleDecodes();
  SchedulePrefills();
  AdmitWaiting();
  if (host_ != nullptr && result_.decodes == 0 && result_.prefill_tokens == 0) {
    const double left = host_->SecondsLeft();
    result_.seconds = result_.seconds > 0 ? std::min(result_.seconds, left) : left;
  }
  RetireFinished();
  ending_ = result_.finished.size();
  return result_;
}

void EngineModel::EndCopies(double step_seconds) {
  copied_.clear();
  host_->Advance(step_seconds, &copied_);
  for (const std::uint64_t id : copied_) {
    for (const auto& sequence : running_) {
      if (sequence->request.id != id) continue;
      Advance(*sequence, std::exchange(sequence->copying, 0));
      break;
    }
  }
}

std::size_t EngineModel::HostHits(const EngineRequest& request, std::size_t hits,
                                  std::size_t most_hits) const {
  if (host_ == nullptr || hits >= most_hits || request.given_tokens > 0) return 0;
  const std::size_t found =
      host_->MatchPrefix(std::span(request.keys).subspan(hits, most_hits - hits));
  const double tokens = static_cast<double>(found) * options_.block_size;
  const double mean_context = static_cast<double>(hits) * options_.block_size + tokens / 2;
  const double compute_s = tokens / options_.profile.prefill_tokens_per_s *
                           (1 + mean_context / options_.profile.ctx_half_tokens);
  return host_->SecondsFor(found * options_.block_size) < compute_s ? found : 0;
}

void EngineModel::TakeHostChanges() {
  for (const HostTier::Change& change : host_changes_) {
    result_.events.push_back(
        {.kind = change.stored ? CacheEvent::Kind::kHostStored : CacheEvent::Kind::kHostEvicted,
         .key = change.key});
  }
  host_changes_.clear();
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
    if (sequence->copying > 0) continue;
    if (sequence->computed < sequence->request.prompt_tokens) RunPrefillChunk(*sequence);
  }
}

void EngineModel::AdmitWaiting() {
  const std::uint32_t block_size = options_.block_size;
  while (budget_ > 0 && !waiting_.empty() && running_.size() < options_.max_sequences) {
    Sequence& sequence = *waiting_.front();
    const EngineRequest& request = sequence.request;
    const std::size_t most_hits =
        std::min<std::size_t>((request.prompt_tokens - 1) / block_size, request.keys.size());
    const std::span<const BlockKey> keys(request.keys);
    const std::size_t hits = cache_.MatchPrefix(keys.first(most_hits));
    const std::size_t host_hits = HostHits(request, hits, most_hits);
    if (host_hits > 0) {
      // Before its GPU blocks are taken, which may push others out of host memory.
      if (!cache_.CanAcquire(keys.first(hits), BlocksNeeded(request, block_size) - hits)) return;
      host_->StartCopy(request.id, keys.subspan(hits, host_hits));
    }
    if (!cache_.Acquire(keys.first(hits), BlocksNeeded(request, block_size) - hits,
                        &sequence.table)) {
      return;
    }
    sequence.full_blocks = static_cast<std::uint32_t>(hits);
    sequence.computed = static_cast<std::uint32_t>(hits) * block_size;
    if (request.given_tokens > sequence.computed) {
      Advance(sequence, request.given_tokens - sequence.computed);
    }
    sequence.copying = static_cast<std::uint32_t>(host_hits) * block_size;
    result_.admitted.push_back({.id = request.id,
                                .cached_tokens = sequence.computed + sequence.copying,
                                .copied_tokens = sequence.copying});
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    if (sequence.copying == 0) RunPrefillChunk(sequence);
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
