#include "core/fleet/engine_report.h"

#include <optional>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

absl::Time At(double seconds) { return kStart + absl::Seconds(seconds); }

EngineLoad Report(std::uint32_t running, std::uint32_t waiting, double at) {
  return EngineLoad{.running = running, .waiting = waiting, .kv_usage = 0, .as_of = At(at)};
}

TEST(OpenHistoryTest, CountsAsOfAMomentInThePast) {
  OpenHistory history;
  EXPECT_EQ(history.At(At(0), 0), 0u);
  history.OnOpen(At(1));
  history.OnOpen(At(2));
  history.OnClose(At(3));
  EXPECT_EQ(history.At(At(0.5), 1), 0u);
  EXPECT_EQ(history.At(At(1), 1), 1u);
  EXPECT_EQ(history.At(At(2.5), 1), 2u);
  EXPECT_EQ(history.At(At(3), 1), 1u);
}

TEST(OpenHistoryTest, SaysWhenItDoesNotReachBack) {
  OpenHistory history;
  for (int i = 0; i < 200; ++i) history.OnOpen(At(i));
  EXPECT_EQ(history.At(At(150), 200), 151u);
  EXPECT_EQ(history.At(At(10), 200), std::nullopt);
}

TEST(EngineReportsTest, ExternalIsWhatIsNotOurs) {
  OpenHistory history;
  EngineReports reports;
  for (int i = 0; i < 3; ++i) history.OnOpen(At(1));
  history.OnOpen(At(5));  // after the engine was asked
  reports.OnReport(Report(4, 1, 2), 4, history);
  EXPECT_EQ(reports.external(), 2u);
  reports.OnReport(Report(1, 0, 6), 4, history);
  EXPECT_EQ(reports.external(), 0u);
}

TEST(EngineReportsTest, AnOldReportChangesNothing) {
  OpenHistory history;
  EngineReports reports;
  reports.OnReport(Report(5, 0, 2), 0, history);
  reports.OnReport(Report(9, 0, 1), 0, history);
  reports.OnReport(Report(9, 0, 2), 0, history);
  EXPECT_EQ(reports.external(), 5u);
}

TEST(EngineReportsTest, TwoSuccessiveEmptyReportsProveAnIdleEngine) {
  OpenHistory history;
  EngineReports reports;
  reports.OnReport(Report(0, 0, 10), 1, history);
  EXPECT_EQ(reports.EmptySince(), std::nullopt);
  reports.OnReport(Report(0, 0, 12), 1, history);
  // Both were made more than 2 s after picks before this.
  EXPECT_EQ(reports.EmptySince(), At(8));
  reports.OnReport(Report(1, 0, 14), 1, history);
  EXPECT_EQ(reports.EmptySince(), std::nullopt);
  reports.OnReport(Report(0, 0, 16), 1, history);
  EXPECT_EQ(reports.EmptySince(), std::nullopt);
}

TEST(EngineReportsTest, AbsurdNumbersAreBounded) {
  OpenHistory history;
  EngineReports reports;
  reports.OnReport(Report(~0u, ~0u, 1), 0, history);
  EXPECT_EQ(reports.external(), 1u << 20);
}

}  // namespace
}  // namespace warmpath
