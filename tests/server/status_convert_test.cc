#include "server/status_convert.h"

#include <string>

#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

TEST(StatusConvertTest, CodesAndMessagesGoThereAndBack) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "model: unknown");
    const grpc::Status wire = ToGrpcStatus(status);
    EXPECT_EQ(static_cast<int>(wire.error_code()), code);
    EXPECT_EQ(ToAbslStatus(wire), status);
    EXPECT_TRUE(wire.error_details().empty());
  }
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(ToAbslStatus(grpc::Status::OK).ok());
}

TEST(StatusConvertTest, RetryInfoIsGooglesOnTheWire) {
  const grpc::Status wire =
      ToGrpcStatus(absl::ResourceExhaustedError("wait"), absl::Milliseconds(1500));
  EXPECT_EQ(RetryAfterOf(wire), absl::Milliseconds(1500));
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(wire.error_details()));
  EXPECT_EQ(details.code(), 8);
  EXPECT_EQ(details.message(), "wait");
  ASSERT_EQ(details.details_size(), 1);
  EXPECT_EQ(details.details(0).type_url(), "type.googleapis.com/google.rpc.RetryInfo");
  // Field 1 (retry_delay) of 7 bytes: field 1 (seconds) 1, field 2 (nanos) 500,000,000.
  EXPECT_EQ(details.details(0).value(),
            std::string("\x0a\x08\x08\x01\x10\x80\xca\xb5\xee\x01", 10));
  EXPECT_EQ(RetryAfterOf(grpc::Status(grpc::StatusCode::INTERNAL, "", "garbage")),
            absl::ZeroDuration());
}

TEST(StatusConvertTest, LongMessagesAreCutBetweenCharacters) {
  std::string text;
  while (text.size() < 2000) text += "h\xc3\xa9";  // 3 bytes
  const grpc::Status wire = ToGrpcStatus(absl::InvalidArgumentError(text));
  EXPECT_LE(wire.error_message().size(), kMaxStatusMessage);
  EXPECT_EQ(wire.error_message().substr(wire.error_message().size() - 3), "...");
  EXPECT_EQ(wire.error_message().find("\xc3..."), std::string::npos);
}

TEST(StatusConvertTest, HttpCodes) {
  EXPECT_EQ(HttpStatusOf(absl::StatusCode::kInvalidArgument), 400);
  EXPECT_EQ(HttpStatusOf(absl::StatusCode::kNotFound), 404);
  EXPECT_EQ(HttpStatusOf(absl::StatusCode::kUnavailable), 503);
  EXPECT_EQ(HttpStatusOf(absl::StatusCode::kFailedPrecondition), 503);
  EXPECT_EQ(HttpStatusOf(absl::StatusCode::kResourceExhausted, absl::Seconds(1)), 429);
  EXPECT_EQ(HttpStatusOf(absl::StatusCode::kResourceExhausted), 413);
  EXPECT_EQ(HttpStatusOf(absl::StatusCode::kInternal), 500);
}

}  // namespace
}  // namespace warmpath
