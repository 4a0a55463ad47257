// What signals ask a batch for, whichever of its processes they reach.
#pragma once

#include <atomic>

#include "validator/supervise/rendezvous.h"
#include "validator/supervise/rendezvous_client.h"

namespace shardplan {

struct StopFlags {
  std::atomic<int> signal = 0;             // the last one
  std::atomic<bool> no_more_runs = false;  // the one that goes on may finish
  std::atomic<bool> now = false;
};

// For agents: what their own signals ask for, if anything. May be told again and again.
void tell_stop(RendezvousClient& rendezvous, const StopFlags& own);

// For the process that serves: what agents have told joins what its own signals ask for.
void hear_stop(RendezvousServer& rendezvous, StopFlags& stop);

}  // namespace shardplan
