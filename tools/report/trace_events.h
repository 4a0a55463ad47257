// The Trace Event Format of Chrome, which Perfetto and chrome://tracing open: processes, threads,
// complete events, counters
// (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace shardplan {

class TraceWriter {
 public:
  void name_process(std::int64_t process, const std::string& name);
  // Threads are shown in the order of their numbers.
  void name_thread(std::int64_t process, std::int64_t thread, const std::string& name);
  // Of one thread: those that contain others first, nothing that overlaps otherwise.
  void add_complete(std::int64_t process, std::int64_t thread, const std::string& name,
                    double start_s, double end_s, const nlohmann::ordered_json& arguments);
  void add_counter(std::int64_t process, const std::string& name, double time_s,
                   std::int64_t value);

  // The whole file; `about` says what it is of.
  std::string text(const nlohmann::ordered_json& about) const;

 private:
  void add(const nlohmann::ordered_json& event);

  std::string events_;  // one line each
};

}  // namespace shardplan
