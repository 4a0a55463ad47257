#include "tools/validate/stop_signals.h"

#include <csignal>

namespace shardplan {
namespace {

StopFlags stop;  // signal handlers reach nothing but statics

extern "C" void note_signal(int number) {
  if (stop.now) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
  stop.signal = number;
  stop.now = stop.no_more_runs || number != SIGINT;
  stop.no_more_runs = true;
}

}  // namespace

void watch_end_signals(void (*handler)(int)) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    if (std::signal(number, handler) == SIG_IGN && number == SIGHUP) {
      std::signal(number, SIG_IGN);
    }
  }
}

StopFlags& watch_stop_signals() {
  watch_end_signals(note_signal);
  return stop;
}

}  // namespace shardplan
