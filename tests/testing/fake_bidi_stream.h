// gRPC's side of one bidirectional stream, played by the test: no network, no threads. The test
// completes each operation when and how it likes, and the fake fails the test when the reactor
// breaks a rule of the callback API: two reads or two writes at once, Finish beside a write, Finish
// twice, anything after Finish.
#ifndef WARMPATH_TESTS_TESTING_FAKE_BIDI_STREAM_H_
#define WARMPATH_TESTS_TESTING_FAKE_BIDI_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"

namespace warmpath::testing {

// Thread-safe as far as gRPC's own is: starts may come from any thread.
template <class Request, class Response>
class FakeBidiStream final : public grpc::ServerCallbackReaderWriter<Request, Response> {
 public:
  using Reactor = grpc::ServerBidiReactor<Request, Response>;

  // What gRPC does once the method handler has returned the reactor.
  void Bind(Reactor* reactor) {
    reactor_ = reactor;
    this->BindReactor(reactor);
  }

  // --- What the reactor started.
  bool reading() const {
    absl::MutexLock lock(&mu_);
    return read_ != nullptr;
  }
  bool writing() const {
    absl::MutexLock lock(&mu_);
    return write_.has_value();
  }
  // The message under way. REQUIRES: writing().
  Response written() const {
    absl::MutexLock lock(&mu_);
    return *write_;
  }
  // gRPC may keep the message under way until the next one. REQUIRES: writing().
  bool held_back() const {
    absl::MutexLock lock(&mu_);
    return held_back_;
  }
  bool finished() const {
    absl::MutexLock lock(&mu_);
    return status_.has_value();
  }
  // REQUIRES: finished().
  grpc::Status status() const {
    absl::MutexLock lock(&mu_);
    return *status_;
  }

  // --- What gRPC reports. REQUIRES: the operation is under way.
  void Deliver(const Request& message) {
    Request* target = TakeRead();
    *target = message;
    reactor_->OnReadDone(true);
  }
  void EndReads() {
    TakeRead();
    reactor_->OnReadDone(false);
  }
  Response CompleteWrite(bool ok = true) {
    Response message;
    {
      absl::MutexLock lock(&mu_);
      message = std::move(*write_);
      write_.reset();
    }
    reactor_->OnWriteDone(ok);
    return message;
  }
  void Cancel() { reactor_->OnCancel(); }

  // Completes what is under way, as gRPC does after Finish or a lost connection, then OnDone, after
  // which the reactor is gone. Fails the test if the reactor does not finish.
  void RunToEnd() {
    for (int i = 0; i < 100 && !finished(); ++i) {
      if (writing()) {
        CompleteWrite(false);
      } else if (reading()) {
        EndReads();
      } else {
        break;
      }
    }
    ASSERT_TRUE(finished()) << "the reactor never finishes: the server could not shut down";
    if (writing()) CompleteWrite(false);
    if (reading()) EndReads();
    std::exchange(reactor_, nullptr)->OnDone();
  }

  // --- grpc::ServerCallbackReaderWriter
  void Read(Request* message) override {
    absl::MutexLock lock(&mu_);
    EXPECT_EQ(read_, nullptr) << "two reads at once";
    EXPECT_FALSE(status_.has_value()) << "read after Finish";
    read_ = message;
  }
  void Write(const Response* message, grpc::WriteOptions options) override {
    absl::MutexLock lock(&mu_);
    EXPECT_FALSE(write_.has_value()) << "two writes at once";
    EXPECT_FALSE(status_.has_value()) << "write after Finish";
    write_ = *message;
    held_back_ = options.get_buffer_hint();
  }
  void WriteAndFinish(const Response*, grpc::WriteOptions, grpc::Status) override {
    FAIL() << "not used by our reactors";
  }
  void Finish(grpc::Status status) override {
    absl::MutexLock lock(&mu_);
    EXPECT_FALSE(write_.has_value()) << "Finish while a write is in flight";
    EXPECT_FALSE(status_.has_value()) << "Finish twice";
    status_ = std::move(status);
  }
  void SendInitialMetadata() override {}

 private:
  grpc::internal::ServerReactor* reactor() override { return reactor_; }
  void CallOnDone() override {}

  Request* TakeRead() {
    absl::MutexLock lock(&mu_);
    return std::exchange(read_, nullptr);
  }

  Reactor* reactor_ = nullptr;
  mutable absl::Mutex mu_;
  Request* read_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::optional<Response> write_ ABSL_GUARDED_BY(mu_);
  bool held_back_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<grpc::Status> status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_TESTING_FAKE_BIDI_STREAM_H_
