// Memory for the messages of unary calls, used again and again: a list of token ids grows eight
// times over while protobuf parses it, and each time asks for memory. So a constant handler costs
// what it must and no more.
//
// Messages that need more than the buffer get the rest from the heap and give it back with the
// call, so what is kept is bounded: kKeptPerThread buffers of kBufferBytes per thread.
#ifndef WARMPATH_TESTS_BENCH_MESSAGE_POOL_H_
#define WARMPATH_TESTS_BENCH_MESSAGE_POOL_H_

#include <google/protobuf/arena.h>
#include <grpcpp/support/message_allocator.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace warmpath::bench {

// Thread-safe. Must outlive the service that uses it, and all its calls.
template <class Request, class Response>
class MessagePool final : public grpc::MessageAllocator<Request, Response> {
 public:
  static constexpr std::size_t kBufferBytes = 32 << 10;  // 3,000 token ids fit
  static constexpr std::size_t kKeptPerThread = 32;

  grpc::MessageHolder<Request, Response>* AllocateMessages() override {
    std::vector<std::unique_ptr<Holder>>& kept = Kept();
    if (kept.empty()) return new Holder();
    Holder* const holder = kept.back().release();
    kept.pop_back();
    holder->Begin();
    return holder;
  }

 private:
  class Holder final : public grpc::MessageHolder<Request, Response> {
   public:
    Holder() : buffer_(new char[kBufferBytes]), arena_(buffer_.get(), kBufferBytes) { Begin(); }

    void Begin() {
      this->set_request(google::protobuf::Arena::CreateMessage<Request>(&arena_));
      this->set_response(google::protobuf::Arena::CreateMessage<Response>(&arena_));
    }

    // The end of a call, on whatever thread that comes.
    void Release() override {
      std::unique_ptr<Holder> self(this);
      arena_.Reset();
      std::vector<std::unique_ptr<Holder>>& kept = Kept();
      if (kept.size() < kKeptPerThread) kept.push_back(std::move(self));
    }

   private:
    const std::unique_ptr<char[]> buffer_;
    google::protobuf::Arena arena_;
  };

  static std::vector<std::unique_ptr<Holder>>& Kept() {
    static thread_local std::vector<std::unique_ptr<Holder>> kept;
    return kept;
  }
};

}  // namespace warmpath::bench

#endif  // WARMPATH_TESTS_BENCH_MESSAGE_POOL_H_
