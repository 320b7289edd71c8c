// What is read from bodies: the model of a request, the usage of a response.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/ext_proc/model_rewrite.h"
#include "server/ext_proc/usage_reader.h"

namespace warmpath {
namespace {

// --- The model

std::string Rewritten(std::string json) {
  const ModelScan scan = ScanModel(json);
  EXPECT_TRUE(scan.complete) << json;
  ReplaceModel(scan, "new", &json);
  return json;
}

TEST(ModelRewriteTest, ReplacesTheOutermostModelOnly) {
  EXPECT_EQ(Rewritten(R"({"model":"a"})"), R"({"model":"new"})");
  EXPECT_EQ(Rewritten(R"({ "x" : {"model":"b"}, "model" : "a" })"),
            R"({ "x" : {"model":"b"}, "model" : "new" })");
  EXPECT_EQ(Rewritten(R"({"x":"\"model\":\"b\"","model":"a\"}"})"),
            R"({"x":"\"model\":\"b\"","model":"new"})");
  EXPECT_EQ(Rewritten(R"({"a":[{"model":1},"]}"],"model":"a","z":-1.5e3,"t":true})"),
            R"({"a":[{"model":1},"]}"],"model":"new","z":-1.5e3,"t":true})");
}

TEST(ModelRewriteTest, ReplacesEveryOneOfSeveral) {
  // Engines take the last one, others the first one.
  EXPECT_EQ(Rewritten(R"({"model":"a","model":"b"})"), R"({"model":"new","model":"new"})");
  EXPECT_EQ(Rewritten(R"({"model":"a"})"), R"({"model":"new"})");
  EXPECT_EQ(Rewritten(R"({"model":{"no":"string"}})"), R"({"model":"new"})");
}

TEST(ModelRewriteTest, AddsAMissingOne) {
  EXPECT_EQ(Rewritten("{}"), R"({"model":"new"})");
  EXPECT_EQ(Rewritten(R"( {"a":1})"), R"( {"model":"new","a":1})");
}

TEST(ModelRewriteTest, KnowsWhatIsIncomplete) {
  const std::string json = R"({"a":[1,{"b":"x"}],"model":"m","c":null})";
  EXPECT_TRUE(ScanModel(json).complete);
  EXPECT_TRUE(ScanModel(json + " \n").complete);
  EXPECT_FALSE(ScanModel(json + "x").complete);
  for (std::size_t size = 0; size < json.size(); ++size) {
    const std::string part = json.substr(0, size);
    EXPECT_FALSE(ScanModel(part).complete) << part;
    const std::string model = ModelOf(part, ScanModel(part));
    EXPECT_EQ(model, size >= json.find("\"m\"") + 3 ? "m" : "") << part;
  }
}

TEST(ModelRewriteTest, NoObjectAtAll) {
  for (const char* json :
       {"", " ", "[]", "\"model\"", "1", "null", "}", "{]", "{1:2}", "{\"a\" 1}"}) {
    const ModelScan scan = ScanModel(json);
    EXPECT_FALSE(scan.complete) << json;
    EXPECT_EQ(ModelOf(json, scan), "") << json;
  }
}

// --- The usage

constexpr char kUsage[] =
    R"("usage":{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":7}})";

void ExpectTheUsage(const std::optional<Usage>& usage) {
  ASSERT_TRUE(usage.has_value());
  EXPECT_EQ(usage->prompt_tokens, 10u);
  EXPECT_EQ(usage->output_tokens, 5u);
  EXPECT_EQ(usage->cached_tokens, 7u);
}

std::optional<Usage> Read(bool event_stream, const std::vector<std::string>& chunks) {
  UsageReader reader(event_stream);
  for (const std::string& chunk : chunks) {
    reader.Read(chunk);
    EXPECT_LE(reader.kept_bytes(), 2 * UsageReader::kMaxKept);
  }
  return reader.Finish();
}

TEST(UsageReaderTest, AJsonBodySplitAnywhere) {
  const std::string body = absl::StrCat(R"({"choices":[{"text":"\"usage\":{"}],)", kUsage, "}");
  for (std::size_t i = 0; i <= body.size(); ++i) {
    ExpectTheUsage(Read(false, {body.substr(0, i), body.substr(i)}));
  }
}

TEST(UsageReaderTest, AStreamSplitAnywhere) {
  const std::string body =
      absl::StrCat("data: {\"choices\":[],\"usage\":null}\n\ndata: {\"choices\":[],", kUsage,
                   "}\r\n\r\nevent: x\ndata: {\"usage\":null}\n\ndata: [DONE]\n\n");
  for (std::size_t i = 0; i <= body.size(); ++i) {
    ExpectTheUsage(Read(true, {body.substr(0, i), body.substr(i)}));
  }
}

TEST(UsageReaderTest, TheLastOfSeveralEvents) {
  ExpectTheUsage(Read(true, {"data: {\"usage\":{\"prompt_tokens\":1}}\n\n",
                             absl::StrCat("data:{", kUsage, "}\n\n")}));
  ExpectTheUsage(Read(true, {absl::StrCat("data: {", kUsage, "}")}));  // without a newline
}

TEST(UsageReaderTest, OtherApis) {
  const std::string responses =
      R"({"type":"response.completed","response":{"usage":{"input_tokens":10,"output_tokens":5,)"
      R"("input_tokens_details":{"cached_tokens":7}}}})";
  ExpectTheUsage(Read(true, {absl::StrCat("data: ", responses, "\n\n")}));
  ExpectTheUsage(Read(
      false, {R"({"usage":{"input_tokens":10,"output_tokens":5,"cache_read_input_tokens":7}})"}));
}

TEST(UsageReaderTest, ALongBodyIsReadFromItsEnd) {
  const std::string text(3 * UsageReader::kMaxKept, 'x');
  std::vector<std::string> chunks = {R"({"choices":[{"text":")"};
  for (int i = 0; i < 100; ++i) chunks.push_back(std::string(9000, 'x'));
  chunks.push_back(absl::StrCat("\"}],", kUsage, ",\"more\":null}"));
  ExpectTheUsage(Read(false, chunks));
  ExpectTheUsage(Read(false, {absl::StrCat("{\"t\":\"", text, "\",", kUsage, "}")}));
  // In a text its quotes have backslashes.
  EXPECT_FALSE(
      Read(false, {absl::StrCat("{\"t\":\"", text, R"(\"usage\":{\"prompt_tokens\":1}"})")})
          .has_value());
}

TEST(UsageReaderTest, ALongLineCostsOnlyItself) {
  std::vector<std::string> chunks = {"data: "};
  for (int i = 0; i < 100; ++i) chunks.push_back(std::string(9000, 'x'));
  chunks.push_back(absl::StrCat("\ndata: {", kUsage, "}\n"));
  ExpectTheUsage(Read(true, chunks));
}

TEST(UsageReaderTest, NothingToFind) {
  for (const bool stream : {false, true}) {
    for (const char* body :
         {"", "{}", "data: {}\n", "{\"usage\":{}}", "{\"usage\":[]}", "data: \"usage\":{\n", "\n\n",
          "data: {\"usage\":{\"prompt_tokens\":-1}}\n", "\xff\xfe", "{\"usage\":"}) {
      EXPECT_FALSE(Read(stream, {body}).has_value()) << body;
    }
  }
}

TEST(UsageReaderTest, NumbersBeyondThirtyTwoBitsAreCut) {
  const auto usage = Read(false, {R"({"usage":{"prompt_tokens":99999999999}})"});
  ASSERT_TRUE(usage.has_value());
  EXPECT_EQ(usage->prompt_tokens, 4294967295u);
}

}  // namespace
}  // namespace warmpath
