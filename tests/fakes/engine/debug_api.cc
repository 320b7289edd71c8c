#include "tests/fakes/engine/debug_api.h"

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/json_quote.h"
#include "core/base/status.h"
#include "tests/fakes/engine/json_text.h"
#include "tests/fakes/engine/responses.h"

namespace warmpath::engine {
namespace {

constexpr char kJson[] = "application/json";

void Fail(const absl::Status& status, httplib::Response& response) {
  response.status = HttpStatusOf(status);
  response.set_content(ErrorBody(status, response.status), kJson);
}

// The query parameter as a number, or nothing when it is absent.
template <typename T>
absl::StatusOr<std::optional<T>> Param(const httplib::Request& request, const char* name) {
  if (!request.has_param(name)) return std::optional<T>();
  T value{};
  bool ok = false;
  if constexpr (std::is_floating_point_v<T>) {
    ok = absl::SimpleAtod(request.get_param_value(name), &value);
  } else {
    ok = absl::SimpleAtoi(request.get_param_value(name), &value);
  }
  if (!ok) return absl::InvalidArgumentError(absl::StrCat(name, ": must be a number, 0 or more"));
  return std::optional<T>(value);
}

void AppendSeq(const std::optional<std::uint64_t>& seq, std::string* out) {
  if (seq) {
    absl::StrAppend(out, *seq);
  } else {
    out->append("null");
  }
}

void AppendBlock(const BlockInfo& block, Rank rank, std::string* out) {
  absl::StrAppend(out, "{\"rank\":", rank, ",\"tier\":\"GPU\",\"hash\":", block.hash,
                  ",\"parent\":");
  AppendSeq(block.parent, out);
  out->append(",\"lora\":");
  AppendJsonQuotedOrNull(block.domain->lora, out);
  out->append(",\"salt\":");
  AppendJsonQuotedOrNull(block.domain->salt, out);
  out->append(",\"token_ids\":");
  AppendJsonArray(block.tokens, out);
  out->push_back('}');
}

absl::StatusOr<std::string> CacheJson(const Engine& engine, std::optional<std::uint64_t> seq,
                                      std::optional<std::uint32_t> only_rank) {
  if (only_rank && *only_rank >= engine.rank_count()) {
    return absl::InvalidArgumentError(absl::StrCat("rank: must be below ", engine.rank_count()));
  }
  std::string out =
      absl::StrCat("{\"block_size\":", engine.options().rank.model.block_size, ",\"ranks\":[");
  const char* separator = "";
  for (std::size_t r = 0; r < engine.rank_count(); ++r) {
    if (only_rank && r != *only_rank) continue;
    // Read before the blocks: batches may be published in between, and an explicit number keeps
    // the two together.
    const std::optional<std::uint64_t> last = engine.rank(r).Stats().last_seq;
    const std::optional<std::uint64_t> at = seq ? seq : last;
    std::vector<BlockInfoPtr> blocks;
    if (at) {
      WARMPATH_ASSIGN_OR_RETURN(blocks, engine.rank(r).CacheAt(at));
    }
    absl::StrAppend(&out, separator, "{\"rank\":", r, ",\"seq\":");
    separator = ",";
    AppendSeq(at, &out);
    out.append(",\"last_seq\":");
    AppendSeq(last, &out);
    out.append(",\"blocks\":[");
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (i > 0) out.push_back(',');
      AppendBlock(*blocks[i], static_cast<Rank>(r), &out);
    }
    out.append("]}");
  }
  out.append("]}");
  return out;
}

std::string StateJson(const Engine& engine) {
  std::string out = "{\"ranks\":[";
  for (std::size_t r = 0; r < engine.rank_count(); ++r) {
    const RankStats s = engine.rank(r).Stats();
    absl::StrAppend(&out, r > 0 ? "," : "", "{\"rank\":", r, ",\"running\":", s.running,
                    ",\"waiting\":", s.waiting, ",\"blocks\":", s.blocks,
                    ",\"free_blocks\":", s.free_blocks, ",\"cached_blocks\":", s.cached_blocks,
                    ",\"steps\":", s.steps);
    absl::StrAppend(&out, ",\"finished\":", s.finished,
                    ",\"prefix_query_tokens\":", s.prefix_query_tokens,
                    ",\"prefix_hit_tokens\":", s.prefix_hit_tokens,
                    ",\"unpublished\":", s.unpublished ? "true" : "false", ",\"last_seq\":");
    AppendSeq(s.last_seq, &out);
    out.append(",\"dropped_seqs\":");
    const EventPublisher* publisher = engine.publisher(r);
    AppendJsonArray(publisher == nullptr ? std::vector<std::uint64_t>() : publisher->dropped(),
                    &out);
    out.push_back('}');
  }
  out.append("]}");
  return out;
}

absl::Status SetDrops(const httplib::Request& request, const Engine& engine) {
  WARMPATH_ASSIGN_OR_RETURN(const std::optional<std::uint64_t> next,
                            Param<std::uint64_t>(request, "next"));
  WARMPATH_ASSIGN_OR_RETURN(const std::optional<double> rate, Param<double>(request, "rate"));
  if (rate && !(*rate >= 0 && *rate <= 1)) {
    return absl::InvalidArgumentError("rate: must be from 0 to 1");
  }
  for (std::size_t r = 0; r < engine.rank_count(); ++r) {
    EventPublisher* publisher = engine.publisher(r);
    if (publisher == nullptr) return absl::FailedPreconditionError("events are off");
    if (next) publisher->DropNext(*next);
    if (rate) publisher->SetDropRate(*rate);
  }
  return absl::OkStatus();
}

}  // namespace

void AddDebugRoutes(httplib::Server* server, Engine* engine) {
  server->Get("/debug/cache",
              [engine](const httplib::Request& request, httplib::Response& response) {
                const auto seq = Param<std::uint64_t>(request, "at_seq");
                const auto rank = Param<std::uint32_t>(request, "rank");
                if (!seq.ok()) return Fail(seq.status(), response);
                if (!rank.ok()) return Fail(rank.status(), response);
                const absl::StatusOr<std::string> body = CacheJson(*engine, *seq, *rank);
                if (!body.ok()) return Fail(body.status(), response);
                response.set_content(*body, kJson);
              });
  server->Get("/debug/state", [engine](const httplib::Request&, httplib::Response& response) {
    response.set_content(StateJson(*engine), kJson);
  });
  PostWithoutBody(server, "/debug/drop",
                  [engine](const httplib::Request& request, httplib::Response& response) {
                    if (const absl::Status status = SetDrops(request, *engine); !status.ok()) {
                      return Fail(status, response);
                    }
                    response.set_content("{}", kJson);
                  });
}

void PostWithoutBody(httplib::Server* server, const char* path, httplib::Server::Handler handler) {
  server->Post(path, [handler = std::move(handler)](const httplib::Request& request,
                                                    httplib::Response& response,
                                                    const httplib::ContentReader& read) {
    const std::string length = request.get_header_value("Content-Length");
    if (request.has_header("Transfer-Encoding") || (!length.empty() && length != "0")) {
      // Read and forgotten, so that the connection can carry the next request.
      read([](const char*, std::size_t) { return true; });
    }
    handler(request, response);
  });
}

}  // namespace warmpath::engine
