// What the two files that implement core/routing/picker.h share.
#ifndef WARMPATH_CORE_ROUTING_PICKER_IMPL_H_
#define WARMPATH_CORE_ROUTING_PICKER_IMPL_H_

#include "core/base/clock.h"
#include "core/base/histogram.h"
#include "core/routing/picker.h"

namespace warmpath {

struct Picker::Impl {
  explicit Impl(const Clock* c);

  const Clock* const clock;
  Histogram lock_hold;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_ROUTING_PICKER_IMPL_H_
