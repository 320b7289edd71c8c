#include "server/pick_handler.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "core/fleet/pool.h"
#include "core/hashing/chain_hash.h"
#include "core/prompt/canonical_text.h"
#include "core/prompt/openai_request.h"
#include "server/convert_pick.h"
#include "warmpath/v1/router.pb.h"

namespace warmpath {
namespace {

constexpr int kMaxMultimodalItems = 4096;
// An item is hashed with each block that it overlaps, and on gRPC's own threads: both bounds
// together keep that within tens of milliseconds. Engines' identifiers are hashes of 64 characters,
// and their items overlap only where audio lies within video.
constexpr std::size_t kMaxItemIdBytes = 1024;
constexpr std::int64_t kMaxItemsPerToken = 8;
constexpr std::size_t kMaxNameBytes = 1024;
constexpr std::uint64_t kBytesPerToken = 4;  // the estimate while no tokenizer is at hand

// For a model whose agents may be on their way back: they try again every two seconds.
constexpr absl::Duration kAskAgainAfter = absl::Seconds(1);

// Chains this long are given back to the allocator instead of kept per thread.
constexpr std::size_t kKeptChain = 16'384;

// Each thread's chain, so that a pick allocates nothing for it once warm.
class ChainBuffer {
 public:
  ChainBuffer() : chain_(Buffer()) { chain_.clear(); }
  ~ChainBuffer() {
    if (chain_.capacity() > kKeptChain) std::vector<ChainHash>().swap(chain_);
  }
  ChainBuffer(const ChainBuffer&) = delete;
  ChainBuffer& operator=(const ChainBuffer&) = delete;

  std::vector<ChainHash>& chain() { return chain_; }

 private:
  static std::vector<ChainHash>& Buffer() {
    static thread_local std::vector<ChainHash> buffer;
    return buffer;
  }
  std::vector<ChainHash>& chain_;
};

std::vector<double> PickSecondsBounds() {
  return {10e-6,  20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3,
          2.5e-3, 5e-3,  10e-3, 25e-3,  50e-3,  0.1,    0.25};
}

}  // namespace

// What is known of a request's prompt. Views point into the request or into `body`.
struct PickHandler::Prompt {
  std::string_view model;
  std::optional<std::string_view> lora;
  std::optional<std::string_view> cache_salt;
  std::span<const TokenId> tokens;
  std::span<const ChainHash> chain;  // ready-made; else made of the tokens
  std::vector<MultimodalItem> items;
  std::string_view raw_text;
  std::string_view chat_text;
  std::string_view canonical_text;  // of either; empty when there is no text
  std::string_view session;
  std::uint64_t length = 0;  // L
  bool length_is_estimate = false;
  std::uint64_t expected_output = 0;
  std::string note;
  OpenAiRequest body;
};

PickHandler::PickHandler(Fleet* fleet, Picker* picker, const Clock* clock, const Limits& limits,
                         std::uint64_t random_seed)
    : fleet_(fleet),
      picker_(picker),
      clock_(clock),
      limits_(limits),
      id_prefix_(absl::StrCat("wp-", absl::Hex(Random(random_seed)() >> 32, absl::kZeroPad8), "-")),
      pick_seconds_(PickSecondsBounds()) {}

bool PickHandler::IsHeavy(const v1::PickRequest& request) const {
  switch (request.prompt_case()) {
    case v1::PickRequest::kText:
      return request.text().size() > limits_.heavy_prompt_tokens * kBytesPerToken;
    case v1::PickRequest::kOpenai:
      return request.openai().json().size() > limits_.heavy_prompt_tokens * kBytesPerToken;
    case v1::PickRequest::kTokens:
      return static_cast<std::uint32_t>(request.tokens().ids_size()) > limits_.heavy_prompt_tokens;
    case v1::PickRequest::kChain:
      return static_cast<std::uint32_t>(request.chain().hashes_size()) >
             limits_.heavy_prompt_tokens / 16;
    case v1::PickRequest::PROMPT_NOT_SET:
      return false;
  }
  return false;
}

absl::Status PickHandler::TakeTokens(const v1::PickRequest& request, Prompt* prompt) const {
  const auto& ids = request.tokens().ids();
  if (static_cast<std::uint32_t>(ids.size()) > limits_.max_prompt_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tokens.ids: has ", ids.size(), " token ids, the limit is ", limits_.max_prompt_tokens,
        ": send a shorter prompt or raise server.max_prompt_tokens"));
  }
  prompt->tokens = {ids.data(), static_cast<std::size_t>(ids.size())};
  prompt->length = prompt->tokens.size();
  if (request.multimodal_size() > kMaxMultimodalItems) {
    return absl::InvalidArgumentError(absl::StrCat("multimodal: has ", request.multimodal_size(),
                                                   " items: send at most ", kMaxMultimodalItems));
  }
  const auto length = static_cast<std::int64_t>(prompt->length);
  std::int64_t covered = 0;
  for (const v1::MultimodalItem& item : request.multimodal()) {
    if (item.id().size() > kMaxItemIdBytes) {
      return absl::InvalidArgumentError(absl::StrCat("multimodal: the id of an item has ",
                                                     item.id().size(), " bytes: send at most ",
                                                     kMaxItemIdBytes));
    }
    if (item.start() < 0 || item.length() <= 0 || item.start() >= length ||
        item.length() > length - item.start()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "multimodal: item \"", item.id().substr(0, 64), "\" covers tokens ", item.start(), " + ",
          item.length(), ", the prompt has ", length, ": send positions inside the prompt"));
    }
    covered += item.length();  // at most 4,096 times a prompt's length: no overflow
    if (covered > kMaxItemsPerToken * length) {
      return absl::InvalidArgumentError(
          absl::StrCat("multimodal: the items cover each token ", kMaxItemsPerToken,
                       " times and more: send each item once, with the tokens it stands for"));
    }
    prompt->items.push_back({.id = item.id(), .start = item.start(), .length = item.length()});
  }
  std::stable_sort(prompt->items.begin(), prompt->items.end(),
                   [](const auto& a, const auto& b) { return a.start < b.start; });
  return absl::OkStatus();
}

absl::Status PickHandler::TakeChain(const v1::PickRequest& request, std::uint32_t block_size,
                                    std::string_view pool, Prompt* prompt) const {
  const v1::ChainHashes& chain = request.chain();
  if (chain.block_size() == 0) {
    return absl::InvalidArgumentError("chain.block_size: send the tokens per block");
  }
  // 0: the pool has no worker yet, and the picker will say so.
  if (block_size != 0 && chain.block_size() != block_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("chain.block_size: is ", chain.block_size(), " but pool \"", ToAbsl(pool),
                     "\" routes on blocks of ", block_size,
                     " tokens: hash the prompt in blocks of ", block_size));
  }
  const std::uint64_t hashed = static_cast<std::uint64_t>(chain.hashes_size()) * chain.block_size();
  const std::uint64_t length = chain.prompt_tokens() == 0 ? hashed : chain.prompt_tokens();
  if (length < hashed) {
    return absl::InvalidArgumentError(
        absl::StrCat("chain.prompt_tokens: is ", length, " but the hashes cover ", hashed,
                     " tokens: send the whole prompt's length, or 0"));
  }
  if (length > limits_.max_prompt_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("chain: covers ", length, " tokens, the limit is ", limits_.max_prompt_tokens,
                     ": send a shorter prompt or raise server.max_prompt_tokens"));
  }
  prompt->chain = {chain.hashes().data(), static_cast<std::size_t>(chain.hashes_size())};
  prompt->length = length;
  return absl::OkStatus();
}

absl::Status PickHandler::TakeBody(const v1::PickRequest& request, Prompt* prompt) const {
  absl::StatusOr<OpenAiRequest> body =
      ParseOpenAiRequest(request.openai().path(), request.openai().json(),
                         {.max_depth = 64, .max_tokens = limits_.max_prompt_tokens});
  if (!body.ok()) return body.status();
  prompt->body = *std::move(body);
  const OpenAiRequest& parsed = prompt->body;
  if (prompt->model.empty()) prompt->model = parsed.model;
  if (!prompt->cache_salt.has_value() && parsed.cache_salt.has_value()) {
    prompt->cache_salt = *parsed.cache_salt;
  }
  prompt->session = parsed.session;
  prompt->expected_output = parsed.max_output_tokens.value_or(0);
  if (parsed.has_tokens) {
    prompt->tokens = parsed.tokens;
    prompt->length = parsed.tokens.size();
  } else {
    prompt->raw_text = parsed.raw_text;
    prompt->chat_text = parsed.chat_text;
    prompt->canonical_text = parsed.canonical_text;
  }
  if (parsed.prompts > 1) {
    prompt->note =
        absl::StrCat("the body holds ", parsed.prompts, " prompts: routed by the first one");
  }
  return absl::OkStatus();
}

// All but the chain, which depends on the pool.
absl::Status PickHandler::TakePrompt(const v1::PickRequest& request, Prompt* prompt) const {
  prompt->model = request.model();
  if (request.has_lora()) prompt->lora = request.lora();
  if (request.has_cache_salt()) prompt->cache_salt = request.cache_salt();
  if (prompt->lora.value_or("").size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("lora: send at most ", kMaxNameBytes, " bytes"));
  }
  prompt->expected_output = request.expected_output_tokens();
  if (request.multimodal_size() > 0 && request.prompt_case() != v1::PickRequest::kTokens) {
    return absl::InvalidArgumentError(
        "multimodal: is understood with tokens only: hashes contain it already, and text needs "
        "the engine's own processing");
  }
  switch (request.prompt_case()) {
    case v1::PickRequest::kTokens:
      return TakeTokens(request, prompt);
    case v1::PickRequest::kText:
      prompt->raw_text = request.text();
      if (!request.text().empty()) {
        AppendCanonicalCompletion(request.text(), &prompt->body.canonical_text);
      }
      prompt->canonical_text = prompt->body.canonical_text;
      break;
    case v1::PickRequest::kOpenai:
      WARMPATH_RETURN_IF_ERROR(TakeBody(request, prompt));
      break;
    case v1::PickRequest::kChain:
    case v1::PickRequest::PROMPT_NOT_SET:
      return absl::OkStatus();
  }
  if (!prompt->canonical_text.empty()) {
    const std::size_t bytes =
        prompt->raw_text.empty() ? prompt->canonical_text.size() : prompt->raw_text.size();
    prompt->length = (bytes + kBytesPerToken - 1) / kBytesPerToken;
    prompt->length_is_estimate = true;
    absl::StrAppend(
        &prompt->note, prompt->note.empty() ? "" : "; ",
        "no tokenizer: lengths are estimates of 4 bytes a token, and what is cached is "
        "predicted from earlier picks by text, not known from events; send token ids or "
        "chain hashes for that");
  }
  return absl::OkStatus();
}

PickResult PickHandler::Pick(const v1::PickRequest& request, HolderId holder, bool reserve,
                             v1::PickResponse* response) {
  const absl::Time start = clock_->Now();
  PickResult result = PickPrompt(request, holder, reserve, response);
  if (reserve && result.status.ok()) {
    pick_seconds_.Observe(absl::ToDoubleSeconds(clock_->Now() - start));
  }
  return result;
}

PickResult PickHandler::PickPrompt(const v1::PickRequest& request, HolderId holder, bool reserve,
                                   v1::PickResponse* response) {
  Query query;
  Prompt prompt;
  absl::Status status = QueryFromProto(request, &query);
  if (status.ok()) status = TakePrompt(request, &prompt);
  if (!status.ok()) return {status, {}};
  if (prompt.model.empty()) {
    return {absl::InvalidArgumentError(
                "model: is empty: send the model's name (in the request, or as \"model\" in the "
                "OpenAI body)"),
            {}};
  }
  const absl::StatusOr<ModelRef> model = fleet_->Resolve(prompt.model);
  if (!model.ok()) {
    return {model.status(),
            absl::IsUnavailable(model.status()) ? kAskAgainAfter : absl::ZeroDuration()};
  }
  if (model->lora.has_value()) {
    if (prompt.lora.has_value() && *prompt.lora != *model->lora) {
      return {absl::InvalidArgumentError(absl::StrCat("lora: is \"", ToAbsl(*prompt.lora),
                                                      "\" but model names the adapter \"",
                                                      *model->lora, "\": send one of them")),
              {}};
    }
    prompt.lora = *model->lora;
  }

  Pool& pool = *model->pool;
  const std::uint32_t block_size = pool.routing_block_size();
  ChainBuffer buffer;
  if (request.prompt_case() == v1::PickRequest::kChain) {
    status = TakeChain(request, block_size, pool.name(), &prompt);
    if (!status.ok()) return {status, {}};
  } else if (!prompt.tokens.empty() && block_size != 0) {
    AppendChain(DomainSeed(prompt.lora, prompt.cache_salt), block_size, prompt.tokens, prompt.items,
                &buffer.chain());
    prompt.chain = buffer.chain();
  } else if (!prompt.canonical_text.empty()) {
    // Once a model has a tokenizer, its token ids are taken above, and nothing here is left to do.
    query.chain_kind = ChainKind::kText;
    if (block_size != 0) {
      AppendTextChain(TextDomainSeed(pool.name(), prompt.lora, prompt.cache_salt),
                      block_size * kBytesPerToken,
                      prompt.canonical_text.substr(0, limits_.max_prompt_tokens * kBytesPerToken),
                      &buffer.chain());
      prompt.chain = buffer.chain();
    }
  }
  query.chain = prompt.chain;
  query.prompt_tokens = prompt.length;
  query.length_is_estimate = prompt.length_is_estimate;
  query.tokens = prompt.tokens;
  query.raw_text = prompt.raw_text;
  query.chat_text = prompt.chat_text;
  query.lora = prompt.lora;
  if (query.session_key.empty()) query.session_key = prompt.session;
  if (query.expected_output_tokens == 0) query.expected_output_tokens = prompt.expected_output;
  query.holder = holder;
  query.reserve = reserve;
  if (!reserve) query.explain = true;

  PickResult result;
  absl::StatusOr<Decision> decision = picker_->Pick(pool, query, &result.retry_after);
  if (!decision.ok()) {
    result.status = decision.status();
    return result;
  }
  if (!prompt.note.empty()) decision->notes.push_back(std::move(prompt.note));
  DecisionToProto(*decision, prompt.length_is_estimate, query.explain, response);
  if (request.request_id().empty()) {
    response->set_request_id(absl::StrCat(id_prefix_, absl::Hex(decision->reservation_id)));
  } else {
    response->set_request_id(request.request_id());
  }
  return result;
}

absl::Status PickHandler::Report(const v1::OutcomeRequest& request) {
  WARMPATH_ASSIGN_OR_RETURN(const Outcome outcome, OutcomeFromProto(request));
  return picker_->ReportOutcome(*fleet_, outcome);
}

void PickHandler::ReleaseHolder(HolderId holder, std::string_view client_instance) {
  picker_->ReleaseHolder(*fleet_, holder, client_instance);
}

std::uint32_t PickHandler::AdoptHolder(std::string_view client_instance, HolderId new_holder) {
  return picker_->AdoptHolder(*fleet_, client_instance, new_holder);
}

}  // namespace warmpath
