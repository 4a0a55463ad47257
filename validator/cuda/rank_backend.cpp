#include "validator/cuda/rank_backend.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "estimator/plan/units.h"
#include "kernels/pointwise/cuda_check.h"
#include "validator/cuda/hex_text.h"
#include "validator/cuda/load.h"
#include "validator/cuda/machine.h"
#include "validator/cuda/memory.h"
#include "validator/cuda/operation_times.h"
#include "validator/cuda/progress.h"
#include "validator/cuda/rank.h"
#include "validator/cuda/reach.h"
#include "validator/supervise/overflow.h"

namespace shardplan {
namespace {

using Clock = std::chrono::steady_clock;

// What went wrong, as an outcome. `requested` is what the phase was going to take, where known.
Failure failure_of(const std::exception& error, std::optional<std::int64_t> requested) {
  Failure failure{.status = RunStatus::kCrash,
                  .reason = error.what(),
                  .process = ProcessState::kLost,
                  .free_bytes = free_bytes_if_known()};
  if (const auto* cuda = dynamic_cast<const CudaError*>(&error)) {
    if (cuda->is_out_of_memory() && failure.free_bytes) {
      failure.status = RunStatus::kOom;
      failure.process = ProcessState::kKept;
      failure.requested_bytes = requested;
    }
  } else if (const auto* nccl = dynamic_cast<const NcclError*>(&error)) {
    // NCCL allocates 2 MiB and 10 MiB at a time: with less than a few of these left it is memory
    // that it lacks. Its communicator is in an unknown state.
    const bool is_short = failure.free_bytes && *failure.free_bytes < 64 * kMiB;
    failure.status = nccl->is_cuda_failure() && is_short ? RunStatus::kOom : RunStatus::kNcclError;
    failure.requested_bytes = failure.status == RunStatus::kOom ? requested : std::nullopt;
  }
  return failure;
}

Failure echo(ProcessState process) {
  return {.status = RunStatus::kCrash,
          .reason = "another rank failed first",
          .process = process,
          .is_echo = true};
}

// One plan on one GPU.
class CudaRun {
 public:
  CudaRun(const RankTask& run, Progress& progress, RunStore& store, int device,
          std::int64_t context_bytes)
      : run_(run), progress_(progress), store_(store), device_(device) {
    result_.memory.context = context_bytes;
  }

  RankResult result() {
    in_phase(RunPhase::kCommit, arena_bytes(), [&] { commit(); });
    in_phase(RunPhase::kLibraries, std::nullopt, [&] { prepare(); });
    if (!run_.simulated) {
      in_phase(RunPhase::kCommunicators, communicator_bytes(), [&] { create(); });
      in_phase(RunPhase::kWarmUp, communicator_bytes(), [&] { connect(); });
    }
    progress_.enter(RunPhase::kLoad);
    load();
    guarded(RunPhase::kSteps, [&] { run_steps(); });
    progress_.enter(RunPhase::kReport);
    report();
    if (run_.is_traced) {  // its events would count in the memory that is reported
      guarded(RunPhase::kSteps, [&] { run_traced_step(); });
    }
    reach_.reset();  // nobody frees what another has mapped
    store_.all_agree("arenas unmapped", true);
    return std::move(result_);
  }

 private:
  std::int64_t arena_bytes() const {
    const std::int64_t width = run_.precision == RunPrecision::kFloat ? 2 : 1;
    return width * (run_.program.persistent_bytes + run_.program.dynamic_bytes);
  }

  // Of what NCCL will allocate for this plan, without what it takes once.
  std::int64_t communicator_bytes() const {
    std::int64_t bytes = 0;
    for (const CommunicatorUse& use : communicators_of(run_.program)) {
      bytes += device_bytes(use);
    }
    return bytes;
  }

  // Runs the body and tells the other ranks how it went, so that none enters what another will
  // never join.
  void in_phase(RunPhase phase, std::optional<std::int64_t> requested,
                const std::function<void()>& body) {
    progress_.enter(phase);
    std::optional<Failure> failure;
    try {
      body();
    } catch (const RunFailure& known) {
      failure = known.failure();
    } catch (const std::logic_error&) {
      throw;  // a mistake of ours
    } catch (const std::exception& error) { failure = failure_of(error, requested); }
    const bool all_fine = store_.all_agree(std::string(name_of(phase)), !failure);
    if (failure) {
      throw RunFailure(*failure);
    }
    if (!all_fine) {
      throw RunFailure(echo(ProcessState::kKept));
    }
  }

  // A phase in which the others notice a failure by themselves, or by the supervisor.
  void guarded(RunPhase phase, const std::function<void()>& body) {
    progress_.enter(phase);
    try {
      body();
    } catch (const RunFailure&) { throw; } catch (const std::logic_error&) {
      throw;
    } catch (const std::exception& error) { throw RunFailure(failure_of(error, std::nullopt)); }
  }

  void commit() {
    const std::int64_t start = device_memory().used();
    result_.memory.growth = start - result_.memory.context;
    reservation_ = std::make_unique<Reservation>(run_.memory_limit_bytes);
    const bool is_wide = run_.precision == RunPrecision::kFloat;
    rank_ = std::make_unique<CudaRank>(is_wide ? widened(run_.program) : run_.program, device_);
    result_.memory.persistent_arena = rank_->program().persistent_bytes;
    result_.memory.dynamic_arena = rank_->program().dynamic_bytes;
  }

  void prepare() {
    const std::int64_t before = device_memory().used();
    rank_->prepare(AttentionKernels::kFastest, read_gemm_choices(gemm_choices_path()));
    result_.memory.libraries = device_memory().used() - before;
    result_.attention = rank_->attention_used();
    result_.products = rank_->products_used();
    result_.machine = machine_description(device_);
  }

  void count(const CommunicatorUse& use, std::int64_t bytes) {
    result_.memory.communicators += bytes;
    for (GroupBytes& group : result_.memory.groups) {
      if (group.kind == use.kind) {
        group.bytes += bytes;
        return;
      }
    }
    result_.memory.groups.push_back({.kind = use.kind, .bytes = bytes});
  }

  // NCCL gives no reason when memory runs out, and the members that wait for the one that lacks it
  // wait for ever: asked before, the answer is exact and nobody is lost.
  void refuse_if_short() const {
    const std::int64_t need = communicator_bytes();
    const std::int64_t free = device_memory().free;
    if (need > free) {
      throw RunFailure({.status = RunStatus::kOom,
                        .reason = "NCCL's communicators do not fit",
                        .process = ProcessState::kKept,
                        .requested_bytes = need,
                        .free_bytes = free});
    }
  }

  void create() {
    std::optional<Failure> failure;
    try {
      refuse_if_short();
    } catch (const RunFailure& known) { failure = known.failure(); }
    if (!store_.all_agree("room for communicators", !failure)) {
      throw RunFailure(failure ? *failure : echo(ProcessState::kKept));
    }
    for (std::size_t i = 0; i < rank_->uses().size(); ++i) {
      const CommunicatorUse& use = rank_->uses()[i];
      const std::int64_t before = device_memory().used();
      const std::string key = "id/" + text_of(use.key);
      if (use.index == 0) {
        store_.set(key, hex_of(new_communicator_id()));
      }
      rank_->connect(i, std::make_unique<CudaCommunicator>(from_hex<ncclUniqueId>(store_.get(key)),
                                                           use.size(), use.index, use.channels));
      progress_.beat();
      count(use, device_memory().used() - before);
    }
  }

  void connect() {
    reach_.emplace(*rank_, store_);
    reach_->share_experts_memory();
    for (std::size_t i = 0; i < rank_->uses().size(); ++i) {
      const std::int64_t before = device_memory().used();
      rank_->launch_first_calls(i);
      wait();
      count(rank_->uses()[i], device_memory().used() - before);
    }
    reach_->serve_by_copies();
    rank_->launch_first_exchanges();
    wait();
  }

  void load() {
    rank_->use_device();
    if (run_.weights == InitialWeights::kReference) {
      load_tensors(*rank_, initial_tensors(run_.model, run_.seed));
    } else {
      load_random(*rank_, run_.seed + static_cast<std::uint64_t>(run_.program.rank));
    }
    fill_inputs(*rank_, run_.batch);
  }

  // Until everything launched is done; gives up where the supervisor says so.
  void wait() {
    for (auto pause = std::chrono::microseconds(20); !rank_->is_done();) {
      if (progress_.must_abort()) {
        rank_->abort();
        throw RunFailure(echo(ProcessState::kLost));
      }
      marks_.beat_if_moved(progress_);
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::microseconds(200));
    }
    progress_.beat();
  }

  void run_steps() {
    for (std::int64_t step = 0; step < run_.warmup + run_.steps; ++step) {
      progress_.begin_step(step);
      const Clock::time_point begin = Clock::now();
      rank_->launch_step(step + 1, run_.learning_rate, hooks());
      wait();
      const std::chrono::duration<double> seconds = Clock::now() - begin;
      require_rows_fit(run_, store_, step, needed_buffer_factor(*rank_));
      if (step >= run_.warmup) {
        result_.step_times_s.push_back(seconds.count());
        if (!run_.simulated) {
          result_.losses.push_back(loss_share(*rank_));
          result_.gradient_norms.push_back(gradient_norm(*rank_));
        }
      }
    }
  }

  // All ranks begin together, on idle devices.
  void run_traced_step() {
    const std::int64_t step = run_.warmup + run_.steps;
    OperationEvents events(std::ssize(rank_->program().operations));
    progress_.begin_step(step);
    events.mark_origin();
    store_.all_agree("traced step", true);
    const double met_s = clock_s();
    const LaunchHooks marks = hooks();
    rank_->launch_step(step + 1, run_.learning_rate,
                       {.before =
                            [&](std::int64_t operation, cudaStream_t stream) {
                              marks.before(operation, stream);
                              events.begin(operation, stream);
                            },
                        .after =
                            [&](std::int64_t operation, cudaStream_t stream) {
                              events.end(operation, stream);
                              marks.after(operation, stream);
                            }});
    wait();
    result_.times = events.times();
    result_.times->met_s = met_s;
  }

  LaunchHooks hooks() {
    const Program& program = rank_->program();
    return {
        .before =
            [this, &program](std::int64_t operation, cudaStream_t stream) {
              progress_.at(operation);
              marks_.begin(program, operation, stream);
            },
        .after = [this, &program](std::int64_t operation,
                                  cudaStream_t stream) { marks_.end(program, operation, stream); }};
  }

  void report() {
    RankMemory& memory = result_.memory;
    const DeviceMemory device = device_memory();
    memory.device_used = device.used() - reservation_->bytes();
    memory.device_total = device.total - reservation_->bytes();
    memory.unattributed = memory.device_used - memory.context - memory.growth -
                          memory.persistent_arena - memory.dynamic_arena - memory.libraries -
                          memory.communicators;
  }

  const RankTask& run_;
  Progress& progress_;
  RunStore& store_;
  int device_;
  RankResult result_;
  std::unique_ptr<Reservation> reservation_;
  DeviceMarks marks_{progress_.page()};
  std::unique_ptr<CudaRank> rank_;
  std::optional<ReachedRanks> reach_;
};

class CudaRankBackend : public RankBackend {
 public:
  explicit CudaRankBackend(std::int64_t local_rank) : device_(static_cast<int>(local_rank)) {}

  RankResult run(const RankTask& run, Progress& progress, RunStore& store) override {
    progress.enter(RunPhase::kContext);
    if (!context_bytes_) {
      check_device();
      CUDA_CHECK(cudaSetDevice(device_));
      CUDA_CHECK(cudaFree(nullptr));
      context_bytes_ = device_memory().used();
    }
    CUDA_CHECK(cudaSetDevice(device_));
    CudaRun cuda_run(run, progress, store, device_, *context_bytes_);
    return cuda_run.result();
  }

 private:
  void check_device() const {
    int devices = 0;
    CUDA_CHECK(cudaGetDeviceCount(&devices));
    if (device_ >= devices) {
      throw RunFailure({.status = RunStatus::kInvalid,
                        .reason = "local rank " + std::to_string(device_) + ", but " +
                                  std::to_string(devices) + " GPUs are visible"});
    }
  }

  int device_;
  std::optional<std::int64_t> context_bytes_;
};

}  // namespace

std::unique_ptr<RankBackend> make_cuda_rank_backend(std::int64_t local_rank) {
  return std::make_unique<CudaRankBackend>(local_rank);
}

}  // namespace shardplan
