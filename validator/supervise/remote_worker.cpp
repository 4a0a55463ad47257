#include "validator/supervise/remote_worker.h"

#include <thread>

#include "validator/supervise/message.h"

namespace shardplan {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kListen{20};   // of an agent, for orders
constexpr Milliseconds kReport{100};  // between an agent's reports of where its worker is
constexpr std::chrono::seconds kKill{10};
constexpr std::chrono::seconds kGoodbye{3};

constexpr const char* kClaimed = "claimed";
constexpr const char* kGone = "gone";

constexpr int kAgentGone = -1;  // instead of an exit code

std::string key_of(std::int64_t rank) {
  return "agent/" + std::to_string(rank) + "/";
}

std::string text_of(const Position& position) {
  Message message;
  message.add("beats", position.beats);
  message.add("phase", std::string(name_of(position.phase)));
  message.add("step", position.step);
  message.add("operation", position.operation);
  message.add("waiting", std::int64_t{position.is_waiting});
  message.add("stopped", std::int64_t{position.is_stopped});
  return message.text();
}

Position position_in(const std::string& text) {
  const Message message(text);
  return {.beats = message.integer("beats"),
          .phase = value_of<RunPhase>(message.word("phase")).value(),
          .step = message.integer("step"),
          .operation = message.integer("operation"),
          .is_waiting = message.integer("waiting") != 0,
          .is_stopped = message.integer("stopped") != 0};
}

std::string text_of(const WorkerEnd& end) {
  Message message;
  message.add("signal", std::int64_t{end.signal.value_or(0)});
  message.add("code", std::int64_t{end.code});
  return message.text();
}

WorkerEnd end_in(const std::string& text) {
  const Message message(text);
  const auto signal = static_cast<int>(message.integer("signal"));
  return {.signal = signal > 0 ? std::optional<int>(signal) : std::nullopt,
          .code = static_cast<int>(message.integer("code"))};
}

std::string packed(const std::string& what, const std::string& value) {
  Message message;
  message.add("what", what);
  message.add("value", value);
  return message.text();
}

}  // namespace

RemoteWorker::RemoteWorker(RendezvousServer& rendezvous, std::int64_t rank)
    : rendezvous_(rendezvous), key_(key_of(rank)) {}

RemoteWorker::~RemoteWorker() {
  tell("quit", "");
  // The rendezvous goes away next: the agent is to know why.
  const Clock::time_point deadline = Clock::now() + kGoodbye;
  while (!is_gone_ && Clock::now() < deadline) {
    listen();
    std::this_thread::sleep_for(Milliseconds(1));
  }
}

void RemoteWorker::tell(const std::string& what, const std::string& value) {
  rendezvous_.set(key_ + "down/" + std::to_string(num_told_++), packed(what, value));
}

void RemoteWorker::listen() {
  while (const auto text = rendezvous_.take(key_ + "up/" + std::to_string(num_heard_))) {
    ++num_heard_;
    const Message message(*text);
    const std::string& value = message.word("value");
    if (message.word("what") == "line") {
      lines_.push_back(value);
    } else if (message.word("what") == "bye") {
      is_gone_ = true;
    } else if (message.word("what") == "position") {
      position_ = position_in(value);
    } else {
      end_ = end_in(value);
      is_started_ = false;
    }
  }
  is_gone_ = is_gone_ || rendezvous_.take(key_ + kGone).has_value();
  if (is_gone_ && is_started_) {
    end_ = WorkerEnd{.signal = std::nullopt, .code = kAgentGone};
    is_started_ = false;
  }
}

void RemoteWorker::start() {
  if (!is_started_) {
    end_.reset();
    lines_.clear();
    position_ = {};  // a process that is gone tells no new one
    is_started_ = true;
    tell("start", "");
  }
}

void RemoteWorker::send(const std::string& line) {
  tell("line", line);
}

std::optional<std::string> RemoteWorker::receive() {
  listen();
  if (lines_.empty()) {
    return std::nullopt;
  }
  std::string line = lines_.front();
  lines_.erase(lines_.begin());
  return line;
}

std::optional<WorkerEnd> RemoteWorker::end() {
  listen();
  return end_;
}

Position RemoteWorker::position() {
  listen();
  return position_;
}

void RemoteWorker::set_abort(bool abort) {
  tell("abort", abort ? "1" : "0");
}

void RemoteWorker::kill() {
  if (is_started_) {
    tell("kill", "");
    const Clock::time_point deadline = Clock::now() + kKill;
    while (!end() && rendezvous_.has(key_ + kClaimed) && Clock::now() < deadline) {
      std::this_thread::sleep_for(Milliseconds(1));
    }
    is_gone_ = is_gone_ || is_started_;  // an agent that never came, or does not even kill
    listen();
  }
}

bool claim_rank(RendezvousClient& rendezvous, std::int64_t rank) {
  const bool is_ours = rendezvous.claim(key_of(rank) + kClaimed);
  if (is_ours) {
    rendezvous.set_when_gone(key_of(rank) + kGone, "");
  }
  return is_ours;
}

void serve_as_agent(RendezvousClient& rendezvous, std::int64_t rank, WorkerLink& worker,
                    const StopFlags& stop) {
  const std::string key = key_of(rank);
  std::int64_t num_heard = 0;
  std::int64_t num_told = 0;
  Clock::time_point reported;
  bool has_ended = true;
  const auto tell = [&](const std::string& what, const std::string& value) {
    rendezvous.set(key + "up/" + std::to_string(num_told++), packed(what, value));
  };
  for (;;) {
    tell_stop(rendezvous, stop);
    const std::string order_key = key + "down/" + std::to_string(num_heard);
    if (const auto order = rendezvous.get_within(order_key, kListen)) {
      rendezvous.erase(order_key);
      ++num_heard;
      const Message message(*order);
      const std::string& what = message.word("what");
      if (what == "quit") {
        worker.kill();
        try {
          tell("bye", "");
        } catch (const RendezvousError&) {  // rank 0 has heard it, and ended before it answered
        }
        return;
      } else if (what == "start") {
        worker.start();
        has_ended = false;
      } else if (what == "line") {
        worker.send(message.word("value"));
      } else if (what == "abort") {
        worker.set_abort(message.word("value") == "1");
      } else if (what == "kill") {
        worker.kill();
      }
    }
    while (const auto line = worker.receive()) { tell("line", *line); }
    if (const auto end = worker.end(); end && !has_ended) {
      has_ended = true;
      tell("position", text_of(worker.position()));
      tell("end", text_of(*end));
    }
    if (Clock::now() - reported > kReport) {
      reported = Clock::now();
      tell("position", text_of(worker.position()));
    }
  }
}

}  // namespace shardplan
