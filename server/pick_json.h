// JSON <-> router.proto, for HTTP. Field names are those of the proto; differences for the reader's
// ease: "tokens" and "chain.hashes" are plain lists (hashes as numbers or as "0x..." strings),
// "subset" given means subset_present, "openai.body" is the OpenAI body itself.
#ifndef WARMPATH_SERVER_PICK_JSON_H_
#define WARMPATH_SERVER_PICK_JSON_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "warmpath/v1/router.pb.h"

namespace warmpath {

// INVALID_ARGUMENT names the field; unknown fields are refused.
absl::Status PickRequestFromJson(std::string_view json, v1::PickRequest* request);
absl::Status OutcomeRequestFromJson(std::string_view json, v1::OutcomeRequest* request);

// 64-bit numbers are strings, as in proto3's JSON: JavaScript would round them.
std::string PickResponseToJson(const v1::PickResponse& response);

// A JSON string with its quotes. Text that is not UTF-8 loses its bytes above 127.
std::string JsonQuote(std::string_view text);

// {"error": {"code": "NOT_FOUND", "message": "...", "retry_after_ms": 0}}
std::string ErrorToJson(const absl::Status& status, absl::Duration retry_after);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_PICK_JSON_H_
