// When every operation of one step began and ended on one rank, on a clock that the ranks of a host
// share, and how the ranks of several hosts find a common zero.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace shardplan {

// Operations beyond these are not recorded: a line of text holds them all.
inline constexpr std::int64_t kMostOperationTimes = 100'000;

struct OperationTimes {
  std::string host = {};   // whose monotonic clock this is: the kernel's boot id; "": not known
  double met_s = 0;        // on that clock: when this rank knew that all others were there
  double origin_s = 0;     // on that clock: what the times below count from
  double precision_s = 0;  // of the origin on that clock
  std::vector<double> begins_s = {};  // by operation of the program
  std::vector<double> ends_s = {};
};

// One line; the reader throws std::invalid_argument for what the writer never writes. Times pass
// in whole nanoseconds.
std::string text_of(const OperationTimes& times);
OperationTimes operation_times_of(const std::string& text);

// Of this process, for the monotonic clock.
std::string host_of_clock();
double clock_s();

// Where each rank's origin lies, seconds after the first operation of all of them began. Ranks of
// one host by its clock; hosts by the moment at which their ranks had met, which they learn within
// a round trip of the rendezvous.
std::vector<double> aligned_origins(const std::vector<OperationTimes>& ranks);

}  // namespace shardplan
