// OpenAI response bodies and stream chunks, with vLLM's additions (cached tokens, token ids).
#ifndef WARMPATH_TESTS_FAKES_ENGINE_RESPONSES_H_
#define WARMPATH_TESTS_FAKES_ENGINE_RESPONSES_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "tests/fakes/engine/job.h"

namespace warmpath::engine {

// Writes everything one job's client gets to see. The job must outlive it.
class ResponseWriter {
 public:
  // `created` in Unix seconds; `id` names the response ("cmpl-..." and "chatcmpl-...").
  ResponseWriter(const Job& job, std::uint64_t id, std::int64_t created);

  // The body of a response that is not streamed.
  std::string Whole(std::uint32_t cached_tokens) const;

  // Server-sent events. A chat's stream starts with the role.
  std::string StreamStart() const;
  // Output tokens [from, to), at least one.
  std::string StreamChunk(std::uint32_t from, std::uint32_t to) const;
  // Usage, if the client asked for it, and "[DONE]".
  std::string StreamEnd(std::uint32_t cached_tokens) const;

 private:
  bool chat() const { return job_.request().kind == RequestKind::kChat; }
  // {"id":..,"object":..,"created":..,"model":..,"choices":[
  std::string Head(std::string_view object) const;
  void AppendUsage(std::uint32_t cached_tokens, std::string* out) const;
  void AppendPromptTokenIds(std::string* out) const;

  const Job& job_;
  const std::uint64_t id_;
  const std::int64_t created_;
  const std::string chunk_head_;  // Equal in all chunks of a stream.
};

// {"error": {"message", "type", "code"}}.
std::string ErrorBody(const absl::Status& status, int http_status);

// 400, 404, 503, ... for a status that is not OK.
int HttpStatusOf(const absl::Status& status);

}  // namespace warmpath::engine

#endif  // WARMPATH_TESTS_FAKES_ENGINE_RESPONSES_H_
