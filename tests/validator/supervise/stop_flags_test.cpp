#include "validator/supervise/stop_flags.h"

#include <doctest/doctest.h>

#include <csignal>

namespace shardplan {

TEST_CASE("what the signals of an agent ask for joins what those of the supervisor do") {
  RendezvousServer server(0, "secret");
  RendezvousClient client("127.0.0.1", server.port(), "secret", std::chrono::seconds(20));
  StopFlags agent;
  StopFlags stop;
  stop.no_more_runs = true;  // one Ctrl-C reaches every process: together they are no second one
  tell_stop(client, agent);
  hear_stop(server, stop);
  CHECK(stop.signal == 0);
  agent.signal = SIGINT;
  agent.no_more_runs = true;
  for (int i = 0; i < 3; ++i) { tell_stop(client, agent); }  // told again, it asks for no more
  hear_stop(server, stop);
  CHECK(stop.signal == SIGINT);
  CHECK_FALSE(stop.now);
  agent.signal = SIGTERM;
  agent.now = true;
  tell_stop(client, agent);
  hear_stop(server, stop);
  CHECK(stop.signal == SIGTERM);
  CHECK(stop.now);
}

}  // namespace shardplan
