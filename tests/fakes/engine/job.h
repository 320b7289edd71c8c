// One request inside the engine: shared by the HTTP thread that waits for it and the rank that
// computes it. All of its tokens, output included, are known from the start (the output is a
// function of the prompt), so progress is a counter.
#ifndef WARMPATH_TESTS_FAKES_ENGINE_JOB_H_
#define WARMPATH_TESTS_FAKES_ENGINE_JOB_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "tests/fakes/engine/cache_history.h"
#include "tests/fakes/engine/openai_request.h"

namespace warmpath::engine {

class Job {
 public:
  struct Progress {
    std::uint32_t produced = 0;
    std::uint32_t cached_tokens = 0;
    bool finished = false;
    bool aborted = false;
  };

  // Consumes the request's prompt. `stream_interval`: how many new tokens are worth waking the
  // waiting thread for; the first and the last always are.
  Job(GenerateRequest request, std::uint32_t stream_interval);

  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const GenerateRequest& request() const { return request_; }
  std::span<const TokenId> tokens() const { return tokens_; }
  std::span<const TokenId> prompt() const { return tokens().first(prompt_tokens_); }
  std::span<const TokenId> output() const { return tokens().subspan(prompt_tokens_); }
  const std::shared_ptr<const HashDomain>& domain() const { return domain_; }

  // The rank's side.
  void SetCachedTokens(std::uint32_t cached_tokens);
  void ProduceToken(bool last);
  void Abort();

  // Blocks until there is something to deliver beyond `delivered` tokens, or until `timeout`.
  Progress Wait(std::uint32_t delivered, absl::Duration timeout);

 private:
  bool Due(std::uint32_t delivered) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  GenerateRequest request_;
  const std::uint32_t stream_interval_;
  const std::uint32_t prompt_tokens_;
  const std::shared_ptr<const HashDomain> domain_;
  std::vector<TokenId> tokens_;

  absl::Mutex mu_;
  absl::CondVar changed_;
  Progress progress_ ABSL_GUARDED_BY(mu_);
  std::uint32_t waiting_for_ ABSL_GUARDED_BY(mu_) = 1;  // Tokens that wake the waiting thread.
};

}  // namespace warmpath::engine

#endif  // WARMPATH_TESTS_FAKES_ENGINE_JOB_H_
