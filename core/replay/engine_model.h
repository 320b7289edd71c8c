// What one rank of an inference engine does with its time and its KV cache: continuous batching
// with chunked prefill, as a state machine without a clock. The caller owns time: it calls Step(),
// waits for the duration that Step() returned, calls EndStep(), and acts on the rest of the result.
//
// One step (docs/warmpath-engine.md): at most `step_token_budget` tokens are computed. Running
// requests that are past their prompt come first, one token each; then unfinished prompts; then
// waiting requests are admitted in order of arrival while budget, sequence slots and KV space last.
// Admission takes the KV blocks of prompt + output at once, so nothing is ever preempted; the first
// request that does not fit stops admission (first come, first served).
//
//   step seconds = base + sum over prefill chunks [a, b) of (b-a)/prefill_rate * (1 +
//   (a+b)/2/ctx_half)
//                + decode_s * decodes + context_token_s * sum of the decodes' context lengths
//
// Cache rules (those of vLLM): a full block is named, and can be hit, as soon as the step that
// fills it is scheduled; hits are whole blocks and at most prompt - 1 tokens, because the last
// prompt token has to be computed to sample from; output tokens fill blocks too, all but the last
// one, whose KV is never computed.
//
// With a host tier (host_tier.h) a waiting request takes what its GPU lacks and host memory has:
// when it is admitted its GPU blocks are taken, and a copy begins if that is quicker than computing
// the same tokens. The copy runs beside the steps, after those asked for earlier; the request's
// prefill is scheduled in the first step that begins after its end, and its blocks are named then.
// It takes nothing of the steps' budget or time. A step with nothing else to do lasts until the
// copy under way ends, or for the base time if that is shorter: then waiting requests are looked at
// again.
//
// Not thread-safe. Deterministic: the same calls give the same results.
#ifndef WARMPATH_CORE_REPLAY_ENGINE_MODEL_H_
#define WARMPATH_CORE_REPLAY_ENGINE_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/replay/block_cache.h"
#include "core/replay/host_tier.h"

namespace warmpath {

// Speed and size of one engine rank. Seconds and tokens.
struct EngineProfile {
  std::string_view name;
  double step_base_s = 0;
  double prefill_tokens_per_s = 0;
  double ctx_half_tokens = 0;  // Context at which attention doubles the cost of a prefill token.
  double decode_s = 0;         // Per decoding request.
  double context_token_s = 0;  // Per token of context of a decoding request.
  std::uint64_t kv_tokens = 0;
};

// A 32B model on two H100.
inline constexpr EngineProfile kProfile32b = {.name = "32b-2xh100",
                                              .step_base_s = 0.020,
                                              .prefill_tokens_per_s = 16'000,
                                              .ctx_half_tokens = 31'000,
                                              .decode_s = 0.15e-3,
                                              .context_token_s = 0.05e-6,
                                              .kv_tokens = 350'000};
// An 8B model on one H100.
inline constexpr EngineProfile kProfile8b = {.name = "8b-1xh100",
                                             .step_base_s = 0.008,
                                             .prefill_tokens_per_s = 45'000,
                                             .ctx_half_tokens = 28'000,
                                             .decode_s = 0.08e-3,
                                             .context_token_s = 0.055e-6,
                                             .kv_tokens = 500'000};

// INVALID_ARGUMENT names the profiles that exist.
absl::StatusOr<EngineProfile> FindEngineProfile(std::string_view name);

struct EngineModelOptions {
  EngineProfile profile = kProfile32b;
  std::uint32_t block_size = 512;  // Tokens.
  std::size_t blocks = 0;          // 0: profile.kv_tokens / block_size.
  std::uint32_t step_token_budget = 8'192;
  std::uint32_t max_sequences = 256;
  BlockCache::Duplicates duplicates = BlockCache::Duplicates::kShare;
  std::size_t host_blocks = 0;        // In host memory. 0: no such tier.
  double host_copy_tokens_per_s = 0;  // From there into the GPU; of use with host_blocks.
};

// OK, or INVALID_ARGUMENT naming the field.
absl::Status ValidateEngineModelOptions(const EngineModelOptions& options);

struct EngineRequest {
  std::uint64_t id = 0;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t output_tokens = 0;
  // Names of the full blocks of prompt + output, in order. May be shorter: blocks beyond its end
  // are computed but never named. Distinct within one request.
  std::vector<BlockKey> keys = {};
  // Leading prompt tokens whose KV comes from outside instead of being computed: whole blocks,
  // fewer than prompt_tokens. They take room like computed ones. For bounds; 0 in any real engine.
  std::uint32_t given_tokens = 0;
};

// One change of the cache, in the order in which it happened.
struct CacheEvent {
  // Of the GPU the first two, of host memory the others.
  enum class Kind : std::uint8_t { kStored, kEvicted, kHostStored, kHostEvicted };
  Kind kind = Kind::kStored;
  // kStored: blocks [first_block, first_block + block_count) of this request got their names.
  std::uint64_t request_id = 0;
  std::uint32_t first_block = 0;
  std::uint32_t block_count = 0;
  // kEvicted: one copy of this block is gone, `copies_left` remain. kHost...: this block.
  BlockKey key = 0;
  std::uint32_t copies_left = 0;
};

struct StepResult {
  struct Admission {
    std::uint64_t id = 0;
    std::uint32_t cached_tokens = 0;  // Prompt tokens that were hits, in any tier.
    std::uint32_t copied_tokens = 0;  // Of these: from host memory.
  };

  double seconds = 0;
  std::uint32_t prefill_tokens = 0;
  std::uint32_t decodes = 0;
  std::vector<Admission> admitted;
  // Known at the end of the step: who got one more output token, in scheduling order; for whom it
  // was the first; for whom it was the last.
  std::vector<std::uint64_t> produced;
  std::vector<std::uint64_t> first_token;
  std::vector<std::uint64_t> finished;
  std::vector<CacheEvent> events;
};

class EngineModel {
 public:
  // REQUIRES: ValidateEngineModelOptions(options).ok().
  explicit EngineModel(const EngineModelOptions& options);

  EngineModel(const EngineModel&) = delete;
  EngineModel& operator=(const EngineModel&) = delete;

  // Appends to the waiting queue. INVALID_ARGUMENT for a request without tokens or one that can
  // never fit into the KV cache; ALREADY_EXISTS for an id that is still running or waiting.
  absl::Status Add(EngineRequest request);

  // Takes a request out, wherever it is; its blocks are freed like those of a finished one. False
  // if there is none.
  bool Cancel(std::uint64_t id);

  // Nothing to do: Step() would return an empty result.
  bool idle() const { return waiting_.empty() && running_.empty(); }

  // Runs one step. The result is valid until the next call.
  const StepResult& Step();
  // The step's time is over. The next Step() ends the one before as well.
  void EndStep() { ending_ = 0; }

  // Forgets all cached blocks. False, with nothing changed, while a request holds blocks.
  bool ClearCache();

  const EngineModelOptions& options() const { return options_; }
  const BlockCache& cache() const { return cache_; }
  const HostTier* host() const { return host_.get(); }  // Null: there is none.
  // As an engine would report it: with those that the step under way finishes.
  std::size_t running() const { return running_.size() + ending_; }
  std::size_t waiting() const { return waiting_.size(); }
  std::size_t CapacityTokens() const { return cache_.capacity() * options_.block_size; }

 private:
  struct Sequence {
    EngineRequest request;
    std::uint32_t computed = 0;     // Tokens whose KV exists.
    std::uint32_t produced = 0;     // Output tokens sampled.
    std::uint32_t full_blocks = 0;  // Blocks already offered a name.
    std::uint32_t copying = 0;      // Tokens that come from host memory; 0 when they have come.
    std::vector<BlockSlot> table;
  };

  // Of requests whose copies ended during the step before.
  void EndCopies(double step_seconds);
  // Hits of a waiting request in host memory that are worth their copies, in blocks behind `hits`.
  std::size_t HostHits(const EngineRequest& request, std::size_t hits, std::size_t most_hits) const;
  void TakeHostChanges();
  void ScheduleDecodes();
  void SchedulePrefills();
  void AdmitWaiting();
  void RunPrefillChunk(Sequence& sequence);
  // Accounts for `tokens` more computed tokens and names the blocks that they fill.
  void Advance(Sequence& sequence, std::uint32_t tokens);
  void ProduceToken(Sequence& sequence);
  void RetireFinished();

  const EngineModelOptions options_;
  BlockCache cache_;
  std::unique_ptr<HostTier> host_;  // Null: no such tier.
  std::vector<HostTier::Change> host_changes_;
  std::vector<std::uint64_t> copied_;  // Reused.
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // In order of admission.
  std::size_t ending_ = 0;  // Finished by the step under way, which has let go of them already.
  absl::flat_hash_set<std::uint64_t> ids_;
  std::uint32_t budget_ = 0;
  StepResult result_;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_REPLAY_ENGINE_MODEL_H_
