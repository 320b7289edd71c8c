#include "server/pick_json.h"

#include <google/protobuf/util/json_util.h>
#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/base/json_quote.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "server/status_convert.h"

namespace warmpath {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

constexpr std::size_t kMaxDepth = 64;

absl::Status Wrong(std::string_view field, std::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), ": must be ", ToAbsl(wanted)));
}

absl::Status Take(std::string_view field, const element& value, std::string* out) {
  std::string_view text;
  if (value.get_string().get(text) != simdjson::SUCCESS) return Wrong(field, "a string");
  *out = text;
  return absl::OkStatus();
}

absl::Status Take(std::string_view field, const element& value, bool* out) {
  if (value.get_bool().get(*out) != simdjson::SUCCESS) return Wrong(field, "true or false");
  return absl::OkStatus();
}

absl::Status Take(std::string_view field, const element& value, double* out) {
  if (value.get_double().get(*out) != simdjson::SUCCESS) return Wrong(field, "a number");
  return absl::OkStatus();
}

// As a number, or as a string of decimal or 0x-hexadecimal digits.
absl::Status Take(std::string_view field, const element& value, std::uint64_t* out) {
  if (value.get_uint64().get(*out) == simdjson::SUCCESS) return absl::OkStatus();
  std::string_view text;
  if (value.get_string().get(text) == simdjson::SUCCESS) {
    absl::string_view digits = ToAbsl(text);
    const bool hex = absl::ConsumePrefix(&digits, "0x");
    if (hex ? absl::SimpleHexAtoi(digits, out) : absl::SimpleAtoi(digits, out)) {
      return absl::OkStatus();
    }
  }
  return Wrong(field, "a whole number of 64 bits, or a string of its digits");
}

absl::Status Take(std::string_view field, const element& value, std::uint32_t* out) {
  std::uint64_t wide = 0;
  if (value.get_uint64().get(wide) != simdjson::SUCCESS ||
      wide > std::numeric_limits<std::uint32_t>::max()) {
    return Wrong(field, "a whole number of 0 to 4294967295");
  }
  *out = static_cast<std::uint32_t>(wide);
  return absl::OkStatus();
}

absl::Status Take(std::string_view field, const element& value, std::int32_t* out) {
  std::int64_t wide = 0;
  if (value.get_int64().get(wide) != simdjson::SUCCESS ||
      wide < std::numeric_limits<std::int32_t>::min() ||
      wide > std::numeric_limits<std::int32_t>::max()) {
    return Wrong(field, "a whole number of 32 bits");
  }
  *out = static_cast<std::int32_t>(wide);
  return absl::OkStatus();
}

absl::Status Take(std::string_view field, const element& value, std::int64_t* out) {
  if (value.get_int64().get(*out) != simdjson::SUCCESS) return Wrong(field, "a whole number");
  return absl::OkStatus();
}

// A list, each item taken by `add(name of the item, item)`.
template <typename Add>
absl::Status TakeList(std::string_view field, const element& value, const Add& add) {
  array items;
  if (value.get_array().get(items) != simdjson::SUCCESS) return Wrong(field, "a list");
  std::size_t index = 0;
  for (const element item : items) {
    WARMPATH_RETURN_IF_ERROR(add(absl::StrCat(ToAbsl(field), "[", index++, "]"), item));
  }
  return absl::OkStatus();
}

// Like TakeList, but without a name for each of what may be a million items.
template <typename T, typename Field>
absl::Status TakeNumbers(std::string_view field, const element& value, Field* out) {
  array items;
  if (value.get_array().get(items) != simdjson::SUCCESS) return Wrong(field, "a list");
  for (const element item : items) {
    T number = 0;
    if (absl::Status status = Take("", item, &number); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat(ToAbsl(field), "[", out->size(), "]", status.message()));
    }
    out->Add(number);
  }
  return absl::OkStatus();
}

template <typename Field>
absl::Status TakeStrings(std::string_view field, const element& value, Field* out) {
  return TakeList(field, value, [out](std::string_view name, const element& item) {
    return Take(name, item, out->Add());
  });
}

// What to do with a member of an object, by name.
using Members = std::vector<
    std::pair<std::string_view, std::function<absl::Status(std::string_view, const element&)>>>;

absl::Status TakeObject(std::string_view path, const element& value, const Members& members) {
  object body;
  if (value.get_object().get(body) != simdjson::SUCCESS) {
    return Wrong(path.empty() ? "body" : path, "an object");
  }
  for (const auto [name, member] : body) {
    const std::string_view key = name;
    const auto it = std::find_if(members.begin(), members.end(),
                                 [&](const auto& known) { return known.first == key; });
    const std::string field =
        path.empty() ? std::string(key) : absl::StrCat(ToAbsl(path), ".", ToAbsl(key));
    if (it == members.end()) {
      const std::string names = absl::StrJoin(members, ", ", [](std::string* out, const auto& m) {
        absl::StrAppend(out, ToAbsl(m.first));
      });
      return absl::InvalidArgumentError(
          absl::StrCat(CutMessage(field).substr(0, 64), ": is unknown: use one of ", names));
    }
    if (member.is_null()) continue;  // as if absent
    WARMPATH_RETURN_IF_ERROR(it->second(field, member));
  }
  return absl::OkStatus();
}

absl::Status TakeRoot(std::string_view json, const Members& members) {
  simdjson::dom::parser parser;
  if (parser.allocate(std::max<std::size_t>(json.size(), 1), kMaxDepth) != simdjson::SUCCESS) {
    return absl::ResourceExhaustedError("body: no memory to parse it");
  }
  element root;
  if (const simdjson::error_code error = parser.parse(json.data(), json.size()).get(root);
      error != simdjson::SUCCESS) {
    return absl::InvalidArgumentError(
        absl::StrCat("body: is no valid JSON: ", simdjson::error_message(error)));
  }
  return TakeObject("", root, members);
}

// Binds a member to a setter: Into<std::string>([&](auto v) { message->set_x(v); }).
template <typename T, typename Set>
std::function<absl::Status(std::string_view, const element&)> Into(Set set) {
  return [set](std::string_view field, const element& value) {
    T taken{};
    WARMPATH_RETURN_IF_ERROR(Take(field, value, &taken));
    set(std::move(taken));
    return absl::OkStatus();
  };
}

absl::Status TakeChain(std::string_view field, const element& value, v1::ChainHashes* chain) {
  return TakeObject(
      field, value,
      {{"hashes",
        [chain](std::string_view name, const element& list) {
          return TakeNumbers<std::uint64_t>(name, list, chain->mutable_hashes());
        }},
       {"block_size", Into<std::uint32_t>([chain](auto v) { chain->set_block_size(v); })},
       {"prompt_tokens", Into<std::uint64_t>([chain](auto v) { chain->set_prompt_tokens(v); })}});
}

absl::Status TakeOpenAi(std::string_view field, const element& value, v1::OpenAiBody* body) {
  return TakeObject(field, value,
                    {{"path", Into<std::string>([body](auto v) { body->set_path(std::move(v)); })},
                     {"body", [body](std::string_view, const element& json) {
                        // An object, or the body as a string.
                        std::string_view text;
                        body->set_json(json.get_string().get(text) == simdjson::SUCCESS
                                           ? std::string(text)
                                           : simdjson::minify(json));
                        return absl::OkStatus();
                      }}});
}

absl::Status TakeMultimodal(std::string_view field, const element& value,
                            v1::PickRequest* request) {
  return TakeList(field, value, [request](std::string_view name, const element& entry) {
    v1::MultimodalItem* item = request->add_multimodal();
    return TakeObject(name, entry,
                      {{"id", Into<std::string>([item](auto v) { item->set_id(std::move(v)); })},
                       {"start", Into<std::int64_t>([item](auto v) { item->set_start(v); })},
                       {"length", Into<std::int64_t>([item](auto v) { item->set_length(v); })}});
  });
}

void AppendEndpoint(const v1::Endpoint& endpoint, std::string* out) {
  absl::StrAppend(out, "{\"target\":{\"worker_id\":", JsonQuote(endpoint.target().worker_id()),
                  ",\"rank\":", endpoint.target().rank(),
                  "},\"address\":", JsonQuote(endpoint.address()), ",\"headers\":{");
  bool first = true;
  for (const auto& [name, value] : endpoint.headers()) {
    absl::StrAppend(out, first ? "" : ",", JsonQuote(name), ":", JsonQuote(value));
    first = false;
  }
  *out += "}}";
}

// JSON has no infinity; proto3's JSON writes it as a string.
std::string NumberText(double value) {
  if (std::isfinite(value)) {
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof(digits), value);
    return std::string(digits, end.ptr);
  }
  return std::isnan(value) ? "\"NaN\"" : value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
}

}  // namespace

absl::Status PickRequestFromJson(std::string_view json, v1::PickRequest* r) {
  int prompts = 0;
  const auto prompt = [&prompts](auto take) {
    return [&prompts, take](std::string_view field, const element& value) {
      if (++prompts > 1) {
        return absl::InvalidArgumentError(absl::StrCat(
            ToAbsl(field), ": is a second prompt: send one of tokens, chain, text, openai"));
      }
      return take(field, value);
    };
  };
  return TakeRoot(
      json, {{"model", Into<std::string>([r](auto v) { r->set_model(std::move(v)); })},
             {"tokens", prompt([r](std::string_view field, const element& value) {
                return TakeNumbers<std::uint32_t>(field, value, r->mutable_tokens()->mutable_ids());
              })},
             {"chain", prompt([r](std::string_view field, const element& value) {
                return TakeChain(field, value, r->mutable_chain());
              })},
             {"text", prompt(Into<std::string>([r](auto v) { r->set_text(std::move(v)); }))},
             {"openai", prompt([r](std::string_view field, const element& value) {
                return TakeOpenAi(field, value, r->mutable_openai());
              })},
             {"multimodal", [r](std::string_view field,
                                const element& value) { return TakeMultimodal(field, value, r); }},
             {"lora", Into<std::string>([r](auto v) { r->set_lora(std::move(v)); })},
             {"cache_salt", Into<std::string>([r](auto v) { r->set_cache_salt(std::move(v)); })},
             {"session_key", Into<std::string>([r](auto v) { r->set_session_key(std::move(v)); })},
             {"tenant", Into<std::string>([r](auto v) { r->set_tenant(std::move(v)); })},
             {"prefix_aware_id",
              Into<std::string>([r](auto v) { r->set_prefix_aware_id(std::move(v)); })},
             {"subset",
              [r](std::string_view field, const element& value) {
                r->set_subset_present(true);
                return TakeStrings(field, value, r->mutable_subset());
              }},
             {"exclude",
              [r](std::string_view field, const element& value) {
                return TakeStrings(field, value, r->mutable_exclude());
              }},
             {"priority", Into<std::int32_t>([r](auto v) { r->set_priority(v); })},
             {"slo_ttft_ms", Into<std::uint32_t>([r](auto v) { r->set_slo_ttft_ms(v); })},
             {"slo_tpot_ms", Into<std::uint32_t>([r](auto v) { r->set_slo_tpot_ms(v); })},
             {"expected_output_tokens",
              Into<std::uint32_t>([r](auto v) { r->set_expected_output_tokens(v); })},
             {"request_id", Into<std::string>([r](auto v) { r->set_request_id(std::move(v)); })},
             {"reservation_lease_ms",
              Into<std::uint32_t>([r](auto v) { r->set_reservation_lease_ms(v); })},
             {"max_wait_ms", Into<std::uint32_t>([r](auto v) { r->set_max_wait_ms(v); })},
             {"policy", Into<std::string>([r](auto v) { r->set_policy(std::move(v)); })},
             {"explain", Into<bool>([r](auto v) { r->set_explain(v); })}});
}

absl::Status OutcomeRequestFromJson(std::string_view json, v1::OutcomeRequest* r) {
  const auto kind = [r](std::string_view field, const element& value) {
    std::string name;
    WARMPATH_RETURN_IF_ERROR(Take(field, value, &name));
    absl::AsciiStrToUpper(&name);
    v1::OutcomeKind parsed;
    if (!v1::OutcomeKind_Parse(absl::StrCat("OUTCOME_KIND_", name), &parsed)) {
      return Wrong(field, "one of FIRST_TOKEN, PROGRESS, FINISHED, FAILED");
    }
    r->set_kind(parsed);
    return absl::OkStatus();
  };
  return TakeRoot(
      json, {{"reservation_id", Into<std::uint64_t>([r](auto v) { r->set_reservation_id(v); })},
             {"kind", kind},
             {"served_by", Into<std::string>([r](auto v) { r->set_served_by(std::move(v)); })},
             {"actual_cached_tokens",
              Into<std::uint32_t>([r](auto v) { r->set_actual_cached_tokens(v); })},
             {"actual_prompt_tokens",
              Into<std::uint32_t>([r](auto v) { r->set_actual_prompt_tokens(v); })},
             {"output_tokens", Into<std::uint32_t>([r](auto v) { r->set_output_tokens(v); })},
             {"ttft_ms", Into<double>([r](auto v) { r->set_ttft_ms(v); })}});
}

// By hand: protobuf's own printer takes several times as long as the pick.
std::string PickResponseToJson(const v1::PickResponse& r) {
  std::string out = "{\"endpoint\":";
  AppendEndpoint(r.endpoint(), &out);
  out += ",\"fallbacks\":[";
  for (int i = 0; i < r.fallbacks_size(); ++i) {
    if (i > 0) out += ',';
    AppendEndpoint(r.fallbacks(i), &out);
  }
  absl::StrAppend(&out, "],\"reservation_id\":\"", r.reservation_id(),
                  "\",\"prompt_tokens\":", r.prompt_tokens(),
                  ",\"predicted_cached_tokens\":", r.predicted_cached_tokens(),
                  ",\"predicted_ttft_ms\":", NumberText(r.predicted_ttft_ms()));
  absl::StrAppend(&out, ",\"freshness\":\"", v1::Freshness_Name(r.freshness()),
                  "\",\"freshness_cause\":\"", v1::FreshnessCause_Name(r.freshness_cause()),
                  "\",\"candidates_exact\":", r.candidates_exact(),
                  ",\"candidates_degraded\":", r.candidates_degraded(),
                  ",\"candidates_none\":", r.candidates_none());
  absl::StrAppend(&out, ",\"policy\":", JsonQuote(r.policy()),
                  ",\"reason\":", JsonQuote(r.reason()));
  if (r.has_explanation()) {
    google::protobuf::util::JsonPrintOptions options;
    options.preserve_proto_field_names = true;
    options.always_print_primitive_fields = true;
    std::string explanation;
    // Fails only for invalid UTF-8, which registration has refused.
    if (!google::protobuf::util::MessageToJsonString(r.explanation(), &explanation, options).ok()) {
      explanation = "null";
    }
    absl::StrAppend(&out, ",\"explanation\":", explanation);
  }
  absl::StrAppend(&out, ",\"request_id\":", JsonQuote(r.request_id()),
                  ",\"pool\":", JsonQuote(r.pool()), "}");
  return out;
}

std::string JsonQuote(std::string_view text) {
  if (simdjson::validate_utf8(text.data(), text.size())) return JsonQuoted(text);
  std::string ascii(text);
  std::replace_if(
      ascii.begin(), ascii.end(), [](char c) { return (c & 0x80) != 0; }, '?');
  return JsonQuoted(ascii);
}

std::string ErrorToJson(const absl::Status& status, absl::Duration retry_after) {
  return absl::StrCat("{\"error\":{\"code\":\"", StatusCodeName(status.code()),
                      "\",\"message\":", JsonQuote(CutMessage(ToStd(status.message()))),
                      ",\"retry_after_ms\":", absl::ToInt64Milliseconds(retry_after), "}}");
}

}  // namespace warmpath
