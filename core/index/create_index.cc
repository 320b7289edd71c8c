#include <memory>

#include "core/index/index.h"

namespace warmpath {

std::unique_ptr<Index> CreateIndex(const IndexOptions& options) {
  return CreateReferenceIndex(options);
}

}  // namespace warmpath
