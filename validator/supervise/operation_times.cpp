#include "validator/supervise/operation_times.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <stdexcept>

#include "validator/supervise/message.h"

namespace shardplan {
namespace {

std::vector<double> in_nanoseconds(std::vector<double> seconds) {
  for (double& value : seconds) { value = std::round(value * 1e9); }
  return seconds;
}

std::vector<double> in_seconds(std::vector<double> nanoseconds) {
  for (double& value : nanoseconds) { value /= 1e9; }
  return nanoseconds;
}

}  // namespace

std::string text_of(const OperationTimes& times) {
  Message message;
  message.add("host", times.host);
  message.add("clock", std::vector<double>{times.met_s, times.origin_s, times.precision_s});
  message.add("begins", in_nanoseconds(times.begins_s));
  message.add("ends", in_nanoseconds(times.ends_s));
  return message.text();
}

OperationTimes operation_times_of(const std::string& text) {
  const Message message(text);
  const std::vector<double> clock = message.numbers("clock");
  if (clock.size() != 3) {
    throw std::invalid_argument("operation times: expected three readings of the clock");
  }
  OperationTimes times = {.host = message.word("host"),
                          .met_s = clock[0],
                          .origin_s = clock[1],
                          .precision_s = clock[2],
                          .begins_s = in_seconds(message.numbers("begins")),
                          .ends_s = in_seconds(message.numbers("ends"))};
  if (times.begins_s.size() != times.ends_s.size()) {
    throw std::invalid_argument("operation times: as many ends as begins were expected");
  }
  return times;
}

std::string host_of_clock() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

double clock_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<double> aligned_origins(const std::vector<OperationTimes>& ranks) {
  std::map<std::string, double> met_s;  // by host, when its first rank knew
  for (const OperationTimes& rank : ranks) {
    const auto [host, is_new] = met_s.try_emplace(rank.host, rank.met_s);
    host->second = std::min(host->second, rank.met_s);
  }
  double first_s = std::numeric_limits<double>::infinity();
  std::vector<double> origins;
  for (const OperationTimes& rank : ranks) {
    origins.push_back(rank.origin_s - met_s.at(rank.host));
    for (const double begin_s : rank.begins_s) {
      first_s = std::min(first_s, origins.back() + begin_s);
    }
  }
  for (double& origin : origins) { origin -= std::isfinite(first_s) ? first_s : 0; }
  return origins;
}

}  // namespace shardplan
