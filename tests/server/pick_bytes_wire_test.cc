// PickEndpoint reads its messages itself: what it does with all kinds of bytes.
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/test_router.h"

namespace warmpath::testing {
namespace {

using ::testing::HasSubstr;

grpc::Status PickWith(TestRouter& router, const std::string& bytes) {
  grpc::ClientContext context;
  SetDeadline(context);
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  return grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
      router.NewChannel().get(),
      grpc::internal::RpcMethod("/warmpath.v1.Router/PickEndpoint",
                                grpc::internal::RpcMethod::NORMAL_RPC),
      &context, request, &response);
}

TEST(PickBytesWireTest, WhatIsNoRequestIsRefused) {
  TestRouter router;
  for (const char* bytes : {"\xFF", "\x12\x03\x0A\x05\x01", "no message at all"}) {
    const grpc::Status status = PickWith(router, bytes);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("PickRequest"));
  }
  const grpc::Status empty = PickWith(router, "");
  EXPECT_EQ(empty.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(empty.error_message(), HasSubstr("model"));
}

// Longer ones come in pieces; beyond 65,536 tokens they are picked for on another thread.
TEST(PickBytesWireTest, PromptsOfAllLengths) {
  TestRouter router;
  TestWorker worker(router, {});
  constexpr std::uint32_t kLongest = 70'000;
  worker.Join(ChainOf(1000, kLongest, 64));
  for (const std::uint32_t tokens : {63u, 64u, 5'000u, kLongest, 700u, 65'536u, 65'537u, 70u}) {
    v1::PickResponse response;
    const grpc::Status status = router.Pick(TokenPick(1000, tokens), &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.prompt_tokens(), tokens);
    // One token is always computed.
    EXPECT_EQ(response.predicted_cached_tokens(), std::min(tokens / 64 * 64, tokens - 1));
    router.FinishRequest(response.reservation_id());
  }
}

}  // namespace
}  // namespace warmpath::testing
