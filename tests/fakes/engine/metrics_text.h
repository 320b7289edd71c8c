// The engine's /metrics page, in the names and labels of vLLM.
#ifndef WARMPATH_TESTS_FAKES_ENGINE_METRICS_TEXT_H_
#define WARMPATH_TESTS_FAKES_ENGINE_METRICS_TEXT_H_

#include <string>

#include "tests/fakes/engine/engine.h"

namespace warmpath::engine {

std::string MetricsText(const Engine& engine);

}  // namespace warmpath::engine

#endif  // WARMPATH_TESTS_FAKES_ENGINE_METRICS_TEXT_H_
