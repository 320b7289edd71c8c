// What tests need to talk to a running engine: HTTP with JSON, and its event stream.
#ifndef WARMPATH_TESTS_FAKES_ENGINE_ENGINE_TEST_CLIENT_H_
#define WARMPATH_TESTS_FAKES_ENGINE_ENGINE_TEST_CLIENT_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "httplib.h"
#include "simdjson.h"
#include "tests/fakes/engine/msgpack_reader_for_test.h"
#include "zmq.hpp"

namespace warmpath::engine {

// One response, parsed. Keeps the parser that owns the document.
struct JsonReply {
  int status = 0;
  std::string text;
  httplib::Headers headers;
  std::shared_ptr<simdjson::dom::parser> parser = std::make_shared<simdjson::dom::parser>();
  simdjson::dom::element json;

  std::uint64_t Uint(const char* pointer) const { return json.at_pointer(pointer).get_uint64(); }
  std::string Str(const char* pointer) const {
    return std::string(std::string_view(json.at_pointer(pointer)));
  }
  std::vector<TokenId> Ids(const char* pointer) const {
    std::vector<TokenId> ids;
    for (const auto id : json.at_pointer(pointer).get_array()) {
      ids.push_back(static_cast<TokenId>(std::uint64_t(id)));
    }
    return ids;
  }
};

class EngineTestClient {
 public:
  explicit EngineTestClient(int port) : http_("127.0.0.1", port) {
    http_.set_keep_alive(true);
    http_.set_tcp_nodelay(true);
    http_.set_read_timeout(30);
  }

  httplib::Client& http() { return http_; }

  JsonReply Post(const char* path, const std::string& body, httplib::Headers headers = {}) {
    return Parse(http_.Post(path, headers, body, "application/json"));
  }
  JsonReply Get(const std::string& path) { return Parse(http_.Get(path)); }

  // The events of a streamed response, without "data: ".
  std::vector<std::string> Stream(const char* path, const std::string& body) {
    httplib::Request request;
    request.method = "POST";
    request.path = path;
    request.body = body;
    std::string text;
    request.content_receiver = [&text](const char* data, std::size_t n, std::uint64_t,
                                       std::uint64_t) {
      text.append(data, n);
      return true;
    };
    const auto result = http_.send(request);
    EXPECT_TRUE(result);
    std::vector<std::string> events;
    std::size_t at = 0;
    for (std::size_t end; (end = text.find("\n\n", at)) != std::string::npos; at = end + 2) {
      EXPECT_EQ(text.substr(at, 6), "data: ");
      events.push_back(text.substr(at + 6, end - at - 6));
    }
    EXPECT_EQ(at, text.size()) << "bytes after the last event";
    return events;
  }

 private:
  static JsonReply Parse(const httplib::Result& result) {
    JsonReply reply;
    EXPECT_TRUE(result) << httplib::to_string(result.error());
    if (!result) return reply;
    reply.status = result->status;
    reply.text = result->body;
    reply.headers = result->headers;
    EXPECT_EQ(reply.parser->parse(reply.text).get(reply.json), simdjson::SUCCESS) << reply.text;
    return reply;
  }

  httplib::Client http_;
};

// What a consumer of one rank's events would hold, built from the messages alone: copies per hash.
class EventMirror {
 public:
  struct Block {
    std::uint32_t copies = 0;
    std::optional<std::uint64_t> parent;
    std::vector<TokenId> tokens;
  };

  // All messages since the first, through the replay socket.
  EventMirror(zmq::context_t& context, const std::string& replay_endpoint)
      : dealer_(context, zmq::socket_type::dealer) {
    dealer_.set(zmq::sockopt::linger, 0);
    dealer_.set(zmq::sockopt::rcvtimeo, 5'000);
    dealer_.connect(replay_endpoint);
  }

  // Reads everything from `next_seq` on; applies up to and including `last`. Asking again and again
  // costs little here: the engine's history is short.
  void Advance(std::uint64_t last) {
    std::string seq(8, '\0');
    for (int i = 7, shift = 0; i >= 0; --i, shift += 8) {
      seq[i] = static_cast<char>(next_seq_ >> shift & 0xff);
    }
    dealer_.send(zmq::str_buffer(""), zmq::send_flags::sndmore);
    dealer_.send(zmq::buffer(seq), zmq::send_flags::none);
    while (true) {
      std::vector<std::string> frames;
      do {
        zmq::message_t frame;
        ASSERT_TRUE(dealer_.recv(frame)) << "replay timed out";
        frames.push_back(frame.to_string());
      } while (dealer_.get(zmq::sockopt::rcvmore));
      const std::string& payload = frames.back();
      if (payload.empty()) return;
      if (next_seq_ <= last) {
        Apply(MsgpackReaderForTest::Read(payload));
        ++next_seq_;
      }
    }
  }

  const std::map<std::uint64_t, Block>& blocks() const { return blocks_; }
  std::uint64_t next_seq() const { return next_seq_; }
  int removals() const { return removals_; }
  std::uint32_t most_copies() const { return most_copies_; }
  int clears() const { return clears_; }
  const std::set<std::string>& extra_keys() const { return extra_keys_; }

 private:
  void Apply(const MsgpackValue& batch) {
    for (const MsgpackValue& event : batch[1].array) {
      const bool map = event.type == MsgpackValue::Type::kMap;
      const std::string& tag = map ? event["type"].str : event[0].str;
      if (tag == "AllBlocksCleared") {
        ++clears_;
        blocks_.clear();
        continue;
      }
      const MsgpackValue& hashes = map ? event["block_hashes"] : event[1];
      if (tag == "BlockRemoved") {
        ++removals_;
        const auto it = blocks_.find(hashes[0].uint);
        ASSERT_NE(it, blocks_.end()) << "removed what was not there";
        if (--it->second.copies == 0) blocks_.erase(it);
        continue;
      }
      ASSERT_EQ(tag, "BlockStored");
      Store(hashes, map ? event["parent_block_hash"] : event[2],
            map ? event["token_ids"] : event[3], (map ? event["block_size"] : event[4]).uint,
            map ? event["extra_keys"] : event[8]);
    }
  }

  void Store(const MsgpackValue& hashes, const MsgpackValue& parent, const MsgpackValue& tokens,
             std::uint64_t block_size, const MsgpackValue& extra_keys) {
    ASSERT_EQ(tokens.array.size(), hashes.array.size() * block_size);
    ASSERT_EQ(extra_keys.array.size(), hashes.array.size());
    std::optional<std::uint64_t> before;
    if (!parent.nil()) before = parent.uint;
    for (std::size_t i = 0; i < hashes.array.size(); ++i) {
      Block& block = blocks_[hashes.array[i].uint];
      most_copies_ = std::max(most_copies_, ++block.copies);
      block.parent = before;
      block.tokens.clear();
      for (std::size_t t = 0; t < block_size; ++t) {
        block.tokens.push_back(static_cast<TokenId>(tokens.array[i * block_size + t].uint));
      }
      for (const MsgpackValue& key : extra_keys.array[i].array) extra_keys_.insert(key.str);
      before = hashes.array[i].uint;
    }
  }

  zmq::socket_t dealer_;
  std::map<std::uint64_t, Block> blocks_;
  std::uint64_t next_seq_ = 0;
  int removals_ = 0;
  std::uint32_t most_copies_ = 0;
  int clears_ = 0;
  std::set<std::string> extra_keys_;
};

}  // namespace warmpath::engine

#endif  // WARMPATH_TESTS_FAKES_ENGINE_ENGINE_TEST_CLIENT_H_
