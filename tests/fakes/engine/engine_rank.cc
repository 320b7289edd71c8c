#include "tests/fakes/engine/engine_rank.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "tests/fakes/engine/block_hasher.h"

namespace warmpath::engine {
namespace {

// How far a step may start in the past to make up for a late wake-up of the one before it. Without
// it, every step would add the machine's scheduling delay to the model's time; without a bound, a
// machine that stood still would be followed by a burst of steps that take no time.
constexpr absl::Duration kMaxCatchUp = absl::Milliseconds(50);

}  // namespace

EngineRank::EngineRank(const RankOptions& options, EventPublisher* publisher)
    : options_(options),
      publisher_(publisher),
      model_(options.model),
      capacity_tokens_(model_.CapacityTokens()),
      history_(options.history_batches),
      thread_([this] { Run(); }) {}

EngineRank::~EngineRank() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    for (auto& [id, entry] : in_flight_) entry.job->Abort();
  }
  thread_.join();
}

absl::Status EngineRank::Submit(const std::shared_ptr<Job>& job) {
  // Hashed outside the lock: long prompts must not delay the scheduler.
  std::vector<BlockKey> keys =
      HashBlocks(options_.hash_seed, *job->domain(), job->tokens(), options_.model.block_size);
  absl::MutexLock lock(&mu_);
  if (stopping_) return absl::UnavailableError("the engine is shutting down");
  const std::uint64_t id = next_id_++;
  const absl::Status status =
      model_.Add({.id = id,
                  .prompt_tokens = static_cast<std::uint32_t>(job->prompt().size()),
                  .output_tokens = static_cast<std::uint32_t>(job->output().size()),
                  .keys = keys});
  if (!status.ok()) return status;
  ids_.emplace(job.get(), id);
  in_flight_.emplace(id, InFlight{job, std::move(keys)});
  return absl::OkStatus();
}

void EngineRank::Cancel(const std::shared_ptr<Job>& job) {
  absl::MutexLock lock(&mu_);
  const auto it = ids_.find(job.get());
  if (it == ids_.end()) return;
  model_.Cancel(it->second);
  in_flight_.erase(it->second);
  ids_.erase(it);
  job->Abort();
}

absl::Status EngineRank::ResetPrefixCache() {
  absl::MutexLock lock(&mu_);
  if (!model_.ClearCache()) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", options_.rank, ": ", model_.cache().pinned_blocks(),
                     " blocks are in use by ", model_.running(), " requests: retry when idle"));
  }
  history_.Cleared();
  pending_.emplace_back(AllBlocksCleared{});
  return absl::OkStatus();
}

absl::StatusOr<std::vector<BlockInfoPtr>> EngineRank::CacheAt(
    std::optional<std::uint64_t> seq) const {
  absl::MutexLock lock(&mu_);
  bool equal = history_.size() == model_.cache().cached_keys();
  model_.cache().ForEachKey([&](BlockKey key, std::uint32_t) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    equal = equal && history_.Contains(key);
  });
  if (!equal) return absl::InternalError("the history differs from the cache");
  return history_.At(seq);
}

RankStats EngineRank::Stats() const {
  absl::MutexLock lock(&mu_);
  RankStats stats = totals_;
  stats.running = model_.running();
  stats.waiting = model_.waiting();
  stats.blocks = model_.cache().capacity();
  stats.free_blocks = model_.cache().free_blocks();
  stats.cached_blocks = model_.cache().cached_keys();
  stats.last_seq = history_.last_seq();
  stats.unpublished = !pending_.empty();
  return stats;
}

bool EngineRank::HasWork() const { return stopping_ || !model_.idle() || !pending_.empty(); }

void EngineRank::Run() {
  const Clock& clock = SystemClock();
  absl::MutexLock lock(&mu_);
  absl::Time previous_end = clock.Now();
  while (true) {
    const bool was_idle = !HasWork();
    if (was_idle) mu_.Await(absl::Condition(this, &EngineRank::HasWork));
    if (stopping_) return;
    const absl::Time now = clock.Now();
    const absl::Time start = was_idle ? now : std::max(previous_end, now - kMaxCatchUp);
    const StepResult& step = model_.Step();
    RecordStep(step);
    previous_end = start + absl::Seconds(step.seconds / options_.speed_factor);
    // Requests arrive and go while the step computes; only Step() itself changes `step`.
    const absl::Duration rest = previous_end - clock.Now();
    if (rest > absl::ZeroDuration() && mu_.AwaitWithTimeout(absl::Condition(&stopping_), rest)) {
      return;
    }
    PublishPending();
    DeliverTokens(step);
    model_.EndStep();
  }
}

void EngineRank::RecordStep(const StepResult& step) {
  if (step.seconds > 0) ++totals_.steps;
  for (const StepResult::Admission& admission : step.admitted) {
    const std::shared_ptr<Job>& job = in_flight_.find(admission.id)->second.job;
    job->SetCachedTokens(admission.cached_tokens);
    totals_.prefix_query_tokens += job->prompt().size();
    totals_.prefix_hit_tokens += admission.cached_tokens;
  }
  for (const CacheEvent& event : step.events) {
    if (event.kind == CacheEvent::Kind::kStored) {
      RecordStored(event);
    } else if (event.kind == CacheEvent::Kind::kEvicted) {
      history_.Evicted(event.key);
      pending_.emplace_back(BlockRemoved{event.key});
    }
  }
}

void EngineRank::RecordStored(const CacheEvent& event) {
  const InFlight& entry = in_flight_.find(event.request_id)->second;
  const Job& job = *entry.job;
  const std::uint32_t block_size = options_.model.block_size;
  const std::span<const TokenId> tokens = job.tokens().subspan(
      std::size_t{event.first_block} * block_size, std::size_t{event.block_count} * block_size);
  BlockStored stored;
  if (event.first_block > 0) stored.parent = entry.keys[event.first_block - 1];
  stored.tokens.assign(tokens.begin(), tokens.end());
  stored.block_size = block_size;
  stored.lora_id = job.request().lora_id;
  stored.lora_name = job.request().lora_name;
  for (std::uint32_t i = 0; i < event.block_count; ++i) {
    const std::uint32_t block = event.first_block + i;
    stored.hashes.push_back(entry.keys[block]);
    std::vector<std::string>& extra = stored.extra_keys.emplace_back();
    if (job.domain()->lora) extra.push_back(*job.domain()->lora);
    if (job.domain()->salt && block == 0) extra.push_back(*job.domain()->salt);

    auto info = std::make_shared<BlockInfo>();
    info->hash = entry.keys[block];
    if (block > 0) info->parent = entry.keys[block - 1];
    const auto own = tokens.subspan(std::size_t{i} * block_size, block_size);
    info->tokens.assign(own.begin(), own.end());
    info->domain = job.domain();
    history_.Stored(std::move(info));
  }
  pending_.emplace_back(std::move(stored));
}

void EngineRank::PublishPending() {
  if (pending_.empty()) return;
  std::uint64_t seq;
  if (publisher_ != nullptr) {
    const double ts = absl::ToDoubleSeconds(SystemClock().WallNow() - absl::UnixEpoch());
    seq = publisher_->Publish(EncodeBatch(ts, pending_, options_.rank, options_.event_format));
  } else {
    seq = next_seq_without_publisher_++;
  }
  pending_.clear();
  history_.Commit(seq);
}

void EngineRank::DeliverTokens(const StepResult& step) {
  // Finished requests stand in the order of `produced`, so one pass with a second cursor will do.
  std::size_t finished = 0;
  for (const std::uint64_t id : step.produced) {
    const bool last = finished < step.finished.size() && step.finished[finished] == id;
    if (last) ++finished;
    const auto it = in_flight_.find(id);
    if (it == in_flight_.end()) continue;  // Cancelled during the step.
    const std::shared_ptr<Job>& job = it->second.job;
    ++totals_.generation_tokens;
    job->ProduceToken(last);
    if (!last) continue;
    ++totals_.finished;
    totals_.prompt_tokens += job->prompt().size();
    ids_.erase(job.get());
    in_flight_.erase(it);
  }
}

}  // namespace warmpath::engine
