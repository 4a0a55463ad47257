#include "validator/supervise/stop_flags.h"

#include <optional>
#include <string>

namespace shardplan {
namespace {

// Two keys, so that of several agents none takes back what another asks for.
constexpr const char* kNoMoreRuns = "stop/no more runs";
constexpr const char* kNow = "stop/now";

}  // namespace

void tell_stop(RendezvousClient& rendezvous, const StopFlags& own) {
  if (own.no_more_runs) {
    rendezvous.set(own.now ? kNow : kNoMoreRuns, std::to_string(own.signal));
  }
}

void hear_stop(RendezvousServer& rendezvous, StopFlags& stop) {
  const std::optional<std::string> last = rendezvous.take(kNoMoreRuns);
  const std::optional<std::string> now = rendezvous.take(kNow);
  if (last || now) {
    stop.signal = std::stoi(now ? *now : *last);
    stop.no_more_runs = true;
    stop.now = stop.now || now.has_value();
  }
}

}  // namespace shardplan
