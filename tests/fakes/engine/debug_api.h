// What a real engine does not offer: the truth about its cache, and faults on request.
//   GET  /debug/cache?at_seq=N&rank=R   every block held after batch N (default: the last batch)
//   GET  /debug/state                   counters per rank
//   POST /debug/drop?next=N&rate=P      lose the next N event messages; change the drop rate
#ifndef WARMPATH_TESTS_FAKES_ENGINE_DEBUG_API_H_
#define WARMPATH_TESTS_FAKES_ENGINE_DEBUG_API_H_

#include "httplib.h"
#include "tests/fakes/engine/engine.h"

namespace warmpath::engine {

// The engine must outlive the server.
void AddDebugRoutes(httplib::Server* server, Engine* engine);

// A POST whose body does not matter. cpp-httplib would wait until its read timeout for the body of
// a request without Content-Length, which is what `curl -X POST` sends.
void PostWithoutBody(httplib::Server* server, const char* path, httplib::Server::Handler handler);

}  // namespace warmpath::engine

#endif  // WARMPATH_TESTS_FAKES_ENGINE_DEBUG_API_H_
