#include <memory>

#include "core/index/index.h"
#include "core/index/prefix_index.h"

namespace warmpath {

std::unique_ptr<Index> CreateIndex(const IndexOptions& options) {
  return std::make_unique<PrefixIndex>(options);
}

}  // namespace warmpath
