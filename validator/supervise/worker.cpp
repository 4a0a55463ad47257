#include "validator/supervise/worker.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <stdexcept>

#include "validator/supervise/line_channel.h"
#include "validator/supervise/message.h"
#include "validator/supervise/run_store.h"

namespace shardplan {
namespace {

constexpr std::chrono::milliseconds kConnectTime{20000};
constexpr std::chrono::milliseconds kWaitTime{60000};

ProgressPage& map_progress() {
  void* page =
      mmap(nullptr, kProgressBytes, PROT_READ | PROT_WRITE, MAP_SHARED, kProgressDescriptor, 0);
  if (page == MAP_FAILED) {
    throw std::runtime_error("worker: no progress page: it is started by its supervisor only");
  }
  return *static_cast<ProgressPage*>(page);
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

class Worker {
 public:
  Worker(const WorkerPlace& place, const PlanReader& read_plan, const BackendMaker& make_backend)
      : place_(place),
        read_plan_(read_plan),
        make_backend_(make_backend),
        page_(map_progress()),
        control_(kControlDescriptor),
        client_(place.address, place.port, variable(kTokenVariable), kConnectTime) {
    faults_ = faults_of(variable(kFaultVariable));
    for (Fault& fault : faults_) { fault.control = kControlDescriptor; }
  }

  int serve() {
    control_.send("ready");
    while (!control_.is_at_end()) {
      if (const auto line = control_.receive(kWaitTime)) {
        answer(*line);
      }
    }
    return 0;
  }

 private:
  void answer(const std::string& line) {
    const Message message(line);
    const std::int64_t id = message.integer("run");
    Message reply;
    reply.add("run", id);
    try {
      reply.add("result", text_of(run(id, request_of(message.word("request")))));
    } catch (const RunFailure& failure) {
      reply.add("failure", text_of(failure.failure()));
    } catch (const std::bad_alloc&) {
      reply.add("failure", text_of(Failure{.status = RunStatus::kCrash,
                                           .reason = "out of host memory",
                                           .process = ProcessState::kLost}));
    } catch (const std::exception& error) {
      reply.add("failure", text_of(Failure{.status = RunStatus::kCrash,
                                           .reason = error.what(),
                                           .process = ProcessState::kLost}));
    }
    const Position position = position_of(page_);
    reply.add("phase", std::string(name_of(position.phase)));
    reply.add("step", position.step);
    reply.add("operation", position.operation);
    Progress(page_).enter(RunPhase::kIdle);
    control_.send(reply.text());
  }

  RankResult run(std::int64_t id, const RunRequest& request) {
    const std::int64_t rank = request.simulated_rank.value_or(place_.rank);
    const auto fault = std::ranges::find_if(
        faults_, [&](const Fault& each) { return each.run == id && each.rank == rank; });
    Progress progress(page_, fault == faults_.end() ? nullptr : &*fault);
    progress.enter(RunPhase::kPlan);
    RankTask run = read_plan_(request, rank);
    run.world_size = request.world_size;
    run.warmup = request.warmup;
    run.steps = request.steps;
    run.learning_rate = request.learning_rate;
    run.seed = request.seed;
    run.precision = request.precision;
    run.weights = request.weights;
    run.simulated = request.simulated_rank.has_value();
    run.memory_limit_bytes = request.memory_limit_bytes;
    run.is_traced = request.is_traced;
    progress.enter(RunPhase::kContext);
    if (!backend_) {
      backend_ = make_backend_(place_.local_rank);
    }
    RendezvousRunStore store(client_, "run " + std::to_string(id) + "/", run.simulated ? 0 : rank,
                             run.simulated ? 1 : run.world_size, progress);
    RankResult result = backend_->run(run, progress, store);
    result.device = place_.local_rank;
    return result;
  }

  WorkerPlace place_;
  const PlanReader& read_plan_;
  const BackendMaker& make_backend_;
  ProgressPage& page_;
  LineChannel control_;
  RendezvousClient client_;
  std::unique_ptr<RankBackend> backend_;
  std::vector<Fault> faults_;
};

}  // namespace

int serve_runs(const WorkerPlace& place, const PlanReader& read_plan,
               const BackendMaker& make_backend) {
  return Worker(place, read_plan, make_backend).serve();
}

}  // namespace shardplan
