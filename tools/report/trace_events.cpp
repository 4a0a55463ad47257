#include "tools/report/trace_events.h"

#include <cmath>

#include "tools/report/values.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

// Whole nanoseconds, so that what lies inside something else still does when both are rounded.
std::int64_t nanoseconds(double seconds) {
  return std::llround(seconds * 1e9);
}

double microseconds(std::int64_t nanoseconds_) {
  return static_cast<double>(nanoseconds_) / 1e3;
}

}  // namespace

void TraceWriter::add(const Json& event) {
  events_ += (events_.empty() ? "" : ",\n") + one_line_of(event);
  if (events_.back() == '\n') {
    events_.pop_back();
  }
}

void TraceWriter::name_process(std::int64_t process, const std::string& name) {
  add({{"name", "process_name"}, {"ph", "M"}, {"pid", process}, {"args", {{"name", name}}}});
  add({{"name", "process_sort_index"},
       {"ph", "M"},
       {"pid", process},
       {"args", {{"sort_index", process}}}});
}

void TraceWriter::name_thread(std::int64_t process, std::int64_t thread, const std::string& name) {
  add({{"name", "thread_name"},
       {"ph", "M"},
       {"pid", process},
       {"tid", thread},
       {"args", {{"name", name}}}});
  add({{"name", "thread_sort_index"},
       {"ph", "M"},
       {"pid", process},
       {"tid", thread},
       {"args", {{"sort_index", thread}}}});
}

void TraceWriter::add_complete(std::int64_t process, std::int64_t thread, const std::string& name,
                               double start_s, double end_s, const Json& arguments) {
  const std::int64_t start = nanoseconds(start_s);
  Json event = {{"name", name},
                {"ph", "X"},
                {"pid", process},
                {"tid", thread},
                {"ts", microseconds(start)},
                {"dur", microseconds(nanoseconds(end_s) - start)}};
  if (!arguments.empty()) {
    event["args"] = arguments;
  }
  add(event);
}

void TraceWriter::add_counter(std::int64_t process, const std::string& name, double time_s,
                              std::int64_t value) {
  add({{"name", name},
       {"ph", "C"},
       {"pid", process},
       {"ts", microseconds(nanoseconds(time_s))},
       {"args", {{"bytes", value}}}});
}

std::string TraceWriter::text(const Json& about) const {
  std::string head = one_line_of({{"displayTimeUnit", "ms"}, {"otherData", about}});
  head.erase(head.rfind('}'));
  return head + ",\"traceEvents\":[\n" + events_ + "\n]}\n";
}

}  // namespace shardplan
