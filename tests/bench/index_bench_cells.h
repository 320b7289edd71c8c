// Cells of index_bench that need no trace, and the report that all share.
#ifndef WARMPATH_TESTS_BENCH_INDEX_BENCH_CELLS_H_
#define WARMPATH_TESTS_BENCH_INDEX_BENCH_CELLS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace warmpath::bench {

// Named numbers in groups, in the order of their adding.
class Report {
 public:
  void Add(std::string_view name, double value);
  void BeginGroup(std::string_view name);
  void EndGroup();
  void Print(bool json) const;

 private:
  enum class Kind { kValue, kBegin, kEnd };
  struct Line {
    Kind kind;
    std::string name;
    double value;
  };
  std::vector<Line> lines_;
};

//   memory  one holder for each block, from 5 to 12 million pairs; three random holders of 1,000;
//           then 90 % of the blocks removed
//   bound   stores until the bound refuses them, and removals at it
//   leave   a target of 100,000 blocks leaves; what readers notice
//   scale   1,000 workers and `pairs` pairs; `exact_blocks` as in IndexOptions
//   hash    token ids to chain hashes, and a prompt of 100,000 tokens hashed and matched
// False if there is no such cell.
bool RunCell(std::string_view cell, std::uint64_t pairs, std::uint32_t exact_blocks,
             Report* report);

}  // namespace warmpath::bench

#endif  // WARMPATH_TESTS_BENCH_INDEX_BENCH_CELLS_H_
