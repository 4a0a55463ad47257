// Checks of all ranks together: groups, the order of collectives, matching messages, and a
// simulation of all streams of all ranks that finds out whether they come to an end.
#include "validator/check/communication.h"

#include <algorithm>
#include <map>
#include <utility>

#include "validator/check/checks.h"

namespace shardplan {
namespace {

// Collectives of one group on one stream are one communicator: they must come in one order.
using Communicator = std::pair<std::vector<std::int64_t>, Stream>;
// From, to: messages of one direction arrive in the order they were sent.
using Channel = std::pair<std::int64_t, std::int64_t>;

bool is_message(OpKind kind) {
  return kind == OpKind::kSend || kind == OpKind::kReceive;
}

const Group& group_of(const Program& program, const Operation& op) {
  return program.groups[static_cast<std::size_t>(op.group)];
}

Channel channel_of(const Program& program, const Operation& op) {
  const std::int64_t peer =
      group_of(program, op).ranks[static_cast<std::size_t>(op.attributes.peer)];
  return op.kind == OpKind::kSend ? Channel{program.rank, peer} : Channel{peer, program.rank};
}

const View& sent_view(const Operation& op) {
  return op.kind == OpKind::kReceive ? op.out[0] : op.in[0];
}

std::string payload_of(const Program& program, const Operation& op) {
  const View& view = sent_view(op);
  const Tensor& tensor = program.tensors[static_cast<std::size_t>(view.tensor)];
  return std::to_string(view.elements()) + " x " + std::string(name_of(tensor.dtype)) +
         " of tensor '" + tensor.name + "'";
}

bool same_payload(const Program& a, const Operation& x, const Program& b, const Operation& y) {
  const View& first = sent_view(x);
  const View& second = sent_view(y);
  return first.elements() == second.elements() &&
         a.tensors[static_cast<std::size_t>(first.tensor)].dtype ==
             b.tensors[static_cast<std::size_t>(second.tensor)].dtype &&
         x.attributes.experts == y.attributes.experts && x.attributes.copies == y.attributes.copies;
}

// One use of a communicator or channel.
struct Use {
  const Program* program = nullptr;
  std::int64_t operation = 0;

  const Operation& op() const { return program->operations[static_cast<std::size_t>(operation)]; }
  std::string text() const {
    return place_of(*program, operation) + " with " + payload_of(*program, op());
  }
};

Problems group_problems(const std::vector<Program>& programs) {
  Problems problems;
  const auto size = static_cast<std::int64_t>(programs.size());
  for (const Program& program : programs) {
    for (const Group& group : program.groups) {
      bool holds =
          std::ranges::is_sorted(group.ranks) && std::ranges::count(group.ranks, program.rank) == 1;
      for (const std::int64_t rank : group.ranks) {
        if (rank < 0 || rank >= size) {
          holds = false;
          continue;
        }
        const std::vector<Group>& theirs = programs[static_cast<std::size_t>(rank)].groups;
        holds = holds && std::ranges::any_of(theirs, [&](const Group& other) {
                  return other.kind == group.kind && other.ranks == group.ranks;
                });
      }
      if (!holds) {
        problems.push_back("rank " + std::to_string(program.rank) +
                           ": a group whose members do not all know it, or that lacks this rank");
      }
    }
  }
  return problems;
}

// Every member's k-th collective of a communicator against the first member's.
void check_collectives(const std::vector<Program>& programs, Problems& problems) {
  std::map<Communicator, std::map<std::int64_t, std::vector<Use>>> uses;
  for (const Program& program : programs) {
    for (const std::int64_t i : launch_order(program)) {
      const Operation& op = program.operations[static_cast<std::size_t>(i)];
      if (is_communication(op.kind) && !is_message(op.kind)) {
        auto& members = uses[{group_of(program, op).ranks, op.stream}];
        for (const std::int64_t rank : group_of(program, op).ranks) { members[rank]; }
        members[program.rank].push_back({.program = &program, .operation = i});
      }
    }
  }
  for (const auto& [communicator, members] : uses) {
    const std::vector<Use>& first = members.begin()->second;
    for (const auto& [rank, own] : members) {
      const std::size_t common = std::min(first.size(), own.size());
      std::size_t k = 0;
      while (k < common && first[k].op().kind == own[k].op().kind &&
             first[k].op().label == own[k].op().label &&
             same_payload(*first[k].program, first[k].op(), *own[k].program, own[k].op())) {
        ++k;
      }
      if (k < common) {
        problems.push_back(own[k].text() + " meets " + first[k].text());
      } else if (first.size() != own.size()) {
        const Use& alone = first.size() > common ? first[common] : own[common];
        problems.push_back(alone.text() + " has no counterpart on rank " +
                           std::to_string(first.size() > common ? rank : members.begin()->first));
      }
    }
  }
}

void check_messages(const std::vector<Program>& programs, Problems& problems) {
  struct Ends {
    std::vector<Use> sent;
    std::vector<Use> received;
  };
  std::map<Channel, Ends> channels;
  for (const Program& program : programs) {
    for (const std::int64_t i : launch_order(program)) {
      const Operation& op = program.operations[static_cast<std::size_t>(i)];
      if (is_message(op.kind)) {
        Ends& ends = channels[channel_of(program, op)];
        (op.kind == OpKind::kSend ? ends.sent : ends.received)
            .push_back({.program = &program, .operation = i});
      }
    }
  }
  for (const auto& [channel, ends] : channels) {
    const std::size_t common = std::min(ends.sent.size(), ends.received.size());
    for (std::size_t k = 0; k < common; ++k) {
      const Use& sent = ends.sent[k];
      const Use& received = ends.received[k];
      if (sent.op().attributes.tag != received.op().attributes.tag ||
          !same_payload(*sent.program, sent.op(), *received.program, received.op())) {
        problems.push_back(received.text() + " gets what " + sent.text() + " sends");
        break;
      }
    }
    if (ends.sent.size() > common) {
      problems.push_back(ends.sent[common].text() + ": nobody receives it");
    }
    if (ends.received.size() > common) {
      problems.push_back(ends.received[common].text() + ": nobody sends it");
    }
  }
}

// Runs all streams of all ranks. Sends wait for their receivers: nothing is buffered.
class Simulation {
 public:
  explicit Simulation(const std::vector<Program>& programs) : programs_(programs) {
    for (const Program& program : programs) {
      State state;
      state.recorded.assign(static_cast<std::size_t>(program.num_events), false);
      for (const std::int64_t i : launch_order(program)) {
        const Operation& op = program.operations[static_cast<std::size_t>(i)];
        state.queues[static_cast<std::size_t>(op.stream)].push_back(i);
      }
      states_.push_back(std::move(state));
    }
  }

  Problems run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t rank = 0; rank < programs_.size(); ++rank) {
        for (std::size_t stream = 0; stream < static_cast<std::size_t>(kNumStreams); ++stream) {
          while (advance(rank, stream)) { moved = true; }
        }
      }
    }
    return stuck();
  }

 private:
  struct State {
    std::vector<std::int64_t> queues[kNumStreams] = {};
    std::size_t next[kNumStreams] = {};
    std::vector<bool> recorded = {};
  };

  // The operation at the head of a stream, if its events allow it to start; else -1.
  std::int64_t ready(std::size_t rank, std::size_t stream) const {
    const State& state = states_[rank];
    if (state.next[stream] == state.queues[stream].size()) {
      return -1;
    }
    const std::int64_t index = state.queues[stream][state.next[stream]];
    const Operation& op = programs_[rank].operations[static_cast<std::size_t>(index)];
    const bool is_free = std::ranges::all_of(op.waits, [&](std::int64_t event) {
      return bool{state.recorded[static_cast<std::size_t>(event)]};
    });
    return is_free ? index : -1;
  }

  void complete(std::size_t rank, std::size_t stream) {
    State& state = states_[rank];
    const std::int64_t index = state.queues[stream][state.next[stream]++];
    const Operation& op = programs_[rank].operations[static_cast<std::size_t>(index)];
    if (op.records >= 0) {
      state.recorded[static_cast<std::size_t>(op.records)] = true;
    }
  }

  // The stream on which `rank` stands ready for the counterpart of the operation; -1: none.
  std::int64_t partner_stream(std::size_t rank, const Program& program, const Operation& op) const {
    for (std::size_t stream = 0; stream < static_cast<std::size_t>(kNumStreams); ++stream) {
      const std::int64_t index = ready(rank, stream);
      if (index < 0) {
        continue;
      }
      const Program& theirs = programs_[rank];
      const Operation& other = theirs.operations[static_cast<std::size_t>(index)];
      if (!is_communication(other.kind)) {
        continue;
      }
      const bool fits = is_message(op.kind)
                            ? is_message(other.kind) && other.kind != op.kind &&
                                  channel_of(theirs, other) == channel_of(program, op)
                            : !is_message(other.kind) && other.stream == op.stream &&
                                  group_of(theirs, other).ranks == group_of(program, op).ranks;
      if (fits) {
        return static_cast<std::int64_t>(stream);
      }
    }
    return -1;
  }

  bool advance(std::size_t rank, std::size_t stream) {
    const std::int64_t index = ready(rank, stream);
    if (index < 0) {
      return false;
    }
    const Program& program = programs_[rank];
    const Operation& op = program.operations[static_cast<std::size_t>(index)];
    std::vector<std::pair<std::size_t, std::size_t>> together = {{rank, stream}};
    if (is_communication(op.kind)) {
      for (const std::int64_t member : group_of(program, op).ranks) {
        const bool takes_part =
            !is_message(op.kind) ||
            member == group_of(program, op).ranks[static_cast<std::size_t>(op.attributes.peer)];
        if (member == program.rank || !takes_part) {
          continue;
        }
        const auto other = static_cast<std::size_t>(member);
        const std::int64_t theirs = partner_stream(other, program, op);
        if (theirs < 0) {
          return false;
        }
        together.push_back({other, static_cast<std::size_t>(theirs)});
      }
    }
    for (const auto& [member, queue] : together) { complete(member, queue); }
    return true;
  }

  Problems stuck() const {
    Problems problems;
    for (std::size_t rank = 0; rank < programs_.size(); ++rank) {
      const State& state = states_[rank];
      for (std::size_t stream = 0; stream < static_cast<std::size_t>(kNumStreams); ++stream) {
        if (state.next[stream] == state.queues[stream].size()) {
          continue;
        }
        const std::int64_t index = state.queues[stream][state.next[stream]];
        const Operation& op = programs_[rank].operations[static_cast<std::size_t>(index)];
        if (is_communication(op.kind)) {
          problems.push_back("deadlock: " + place_of(programs_[rank], index) + " with " +
                             payload_of(programs_[rank], op) + " waits for ever");
        }
      }
    }
    return problems;
  }

  const std::vector<Program>& programs_;
  std::vector<State> states_;
};

}  // namespace

Problems communication_problems(const std::vector<Program>& programs) {
  Problems problems = group_problems(programs);
  if (problems.empty()) {
    check_collectives(programs, problems);
    check_messages(programs, problems);
  }
  return problems;
}

Problems deadlock_problems(const std::vector<Program>& programs) {
  return Simulation(programs).run();
}

}  // namespace shardplan
