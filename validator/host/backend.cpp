#include "validator/host/backend.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "validator/program/run_data.h"
#include "validator/supervise/on_threads.h"

namespace shardplan {
namespace {

// Elements of T from one element of a tensor to the next.
template <class T>
std::int64_t step_of(const Tensor& tensor) {
  const std::int64_t bytes = bytes_of(tensor.dtype) * kHostBytesPerByte;
  if (bytes < static_cast<std::int64_t>(sizeof(T))) {
    throw std::logic_error("host backend: " + std::string(name_of(tensor.dtype)) +
                           " has no room for an element");
  }
  return bytes / static_cast<std::int64_t>(sizeof(T));
}

template <class T>
std::int64_t elements_of_bytes(std::int64_t bytes) {
  return bytes * kHostBytesPerByte / static_cast<std::int64_t>(sizeof(T));
}

}  // namespace

template <class T>
HostBackend<T>::HostBackend(const std::vector<Program>& programs, DeadMemory dead_memory)
    : dead_memory_(dead_memory) {
  for (const Program& program : programs) {
    Rank rank{.program = program, .arenas = {}, .born = {}, .dying = {}};
    rank.born.resize(rank.program.operations.size());
    rank.dying.resize(rank.program.operations.size());
    std::int64_t ends[2] = {0, 0};
    for (std::size_t i = 0; i < rank.program.tensors.size(); ++i) {
      const Tensor& tensor = rank.program.tensors[i];
      if (tensor.arena == Arena::kPersistent && tensor.component == Component::kWorkspace) {
        continue;  // last in the arena: tables and scratch that only a GPU's kernels use
      }
      std::int64_t& end = ends[static_cast<std::size_t>(tensor.arena)];
      end = std::max(end, tensor.offset + tensor.bytes);
      if (tensor.arena == Arena::kDynamic) {
        rank.born[static_cast<std::size_t>(tensor.born)].push_back(static_cast<std::int64_t>(i));
        rank.dying[static_cast<std::size_t>(tensor.dies)].push_back(static_cast<std::int64_t>(i));
      }
    }
    for (std::size_t arena = 0; arena < 2; ++arena) {
      rank.arenas[arena].resize(static_cast<std::size_t>(elements_of_bytes<T>(ends[arena])), T{0});
    }
    ranks_.push_back(std::move(rank));
  }
}

template <class T>
HostBackend<T>::HostBackend(const Program& program, HostExchange<T>& others,
                            std::function<void(std::int64_t)> before)
    : HostBackend({program}, DeadMemory::kKept) {
  others_ = &others;
  before_ = std::move(before);
}

template <class T>
HostView<T> HostBackend<T>::resolve(Rank& rank, const View& view) const {
  if (!view.present()) {
    return {};
  }
  const Tensor& tensor = rank.program.tensors.at(static_cast<std::size_t>(view.tensor));
  const std::int64_t step = step_of<T>(tensor);
  T* begin = rank.arenas[static_cast<std::size_t>(tensor.arena)].data() +
             elements_of_bytes<T>(tensor.offset);
  return {.data = begin + view.offset * step,
          .rows = view.rows,
          .cols = view.cols,
          .row_step = view.stride * step,
          .step = step};
}

template <class T>
HostView<T> HostBackend<T>::whole(Rank& rank, std::int64_t tensor) const {
  const Tensor& row = rank.program.tensors.at(static_cast<std::size_t>(tensor));
  return resolve(rank, {.tensor = tensor, .rows = row.rows, .cols = row.cols, .stride = row.cols});
}

template <class T>
void HostBackend<T>::poison(Rank& rank, const std::vector<std::int64_t>& tensors) const {
  if (dead_memory_ == DeadMemory::kKept) {
    return;
  }
  for (const std::int64_t index : tensors) {
    const Tensor& tensor = rank.program.tensors[static_cast<std::size_t>(index)];
    T* begin = rank.arenas[static_cast<std::size_t>(tensor.arena)].data() +
               elements_of_bytes<T>(tensor.offset);
    std::fill_n(begin, elements_of_bytes<T>(tensor.bytes), std::numeric_limits<T>::quiet_NaN());
  }
}

template <class T>
void HostBackend<T>::load(const Tensors& tensors) {
  shapes_ = tensors;
  for (auto& [name, matrix] : shapes_) {
    std::ranges::fill(matrix.values, std::numeric_limits<double>::quiet_NaN());
  }
  Tensors source = tensors;
  for (Rank& rank : ranks_) {
    std::ranges::fill(rank.arenas[0], T{0});
    for (const ParameterPart& part : rank.program.parameters) {
      Matrix& matrix = source.at(part.logical);
      for (const ParameterRange* range : {&part.weight, &part.master}) {
        const HostView<T> view = whole(rank, range->tensor);
        for (std::int64_t e = range->begin; e < range->end; ++e) {
          view[range->offset + e - range->begin] = static_cast<T>(logical_element(matrix, part, e));
        }
      }
    }
  }
  num_steps_ = 0;
}

template <class T>
void HostBackend<T>::fill_inputs(Rank& rank, const Batch& batch, double learning_rate) const {
  for_each_input(rank.program, batch,
                 [&](std::int64_t tensor, std::int64_t row, std::int64_t value) {
                   whole(rank, tensor)(row, 0) = static_cast<T>(value);
                 });
  const HostView<T> schedule = whole(rank, rank.program.schedule_tensor);
  schedule(0, 0) = static_cast<T>(num_steps_);
  schedule(0, 1) = static_cast<T>(learning_rate);
}

template <class T>
void HostBackend<T>::run(Rank& rank, HostExchange<T>& exchange) const {
  const Program& program = rank.program;
  // Tensors die in the order of the list.
  const std::size_t count = program.operations.size();
  const bool is_listed = dead_memory_ != DeadMemory::kKept || program.launches.empty();
  for (std::size_t k = 0; k < count; ++k) {
    const std::size_t i = is_listed ? k : static_cast<std::size_t>(program.launches[k]);
    const Operation& op = program.operations[i];
    if (before_) {
      before_(static_cast<std::int64_t>(i));
    }
    poison(rank, rank.born[i]);
    HostArguments<T> arguments{.attributes = op.attributes, .in = {}, .out = {}};
    for (const View& view : op.in) { arguments.in.push_back(resolve(rank, view)); }
    for (const View& view : op.out) { arguments.out.push_back(resolve(rank, view)); }
    if (is_communication(op.kind)) {
      exchange.run(op, program.groups.at(static_cast<std::size_t>(op.group)), program.rank,
                   arguments);
    } else {
      run_on_host(op.kind, arguments);
    }
    poison(rank, rank.dying[i]);
  }
}

template <class T>
void HostBackend<T>::run_all() {
  if (others_ != nullptr) {
    run(ranks_.front(), *others_);
    return;
  }
  HostCommunicator<T> communicator;
  on_threads(ranks_.size(), [&](std::size_t i) {
    try {
      run(ranks_[i], communicator);
    } catch (...) {
      communicator.fail();
      throw;
    }
  });
}

template <class T>
double HostBackend<T>::step(const Batch& batch, double learning_rate) {
  ++num_steps_;
  for (Rank& rank : ranks_) { fill_inputs(rank, batch, learning_rate); }
  run_all();
  double loss = 0;
  for (Rank& rank : ranks_) {
    if (speaks_for_loss(rank.program)) {
      loss += static_cast<double>(whole(rank, rank.program.loss)(0, 0));
    }
    if (rank.program.aux_loss >= 0) {  // every rank routed other tokens
      loss += static_cast<double>(whole(rank, rank.program.aux_loss)(0, 0));
    }
  }
  return loss;
}

template <class T>
std::optional<double> HostBackend<T>::needed_buffer_factor() {
  std::optional<double> needed;
  for (Rank& rank : ranks_) {
    const ExpertBound& bound = rank.program.expert_bound;
    if (bound.required >= 0) {
      const auto rows = static_cast<std::int64_t>(whole(rank, bound.required)(0, 0));
      const std::optional<double> factor = shardplan::needed_buffer_factor(bound, rows);
      needed = factor && (!needed || *factor > *needed) ? factor : needed;
    }
  }
  return needed;
}

template <class T>
Tensors HostBackend<T>::collected(ParameterRange ParameterPart::*range) const {
  Tensors tensors = shapes_;
  for (const Rank& rank : ranks_) {
    for (const ParameterPart& part : rank.program.parameters) {
      const ParameterRange& where = part.*range;
      const Tensor& tensor = rank.program.tensors.at(static_cast<std::size_t>(where.tensor));
      const std::vector<T>& arena = rank.arenas[static_cast<std::size_t>(tensor.arena)];
      Matrix& matrix = tensors.at(part.logical);
      for (std::int64_t e = where.begin; e < where.end; ++e) {
        const std::int64_t at = elements_of_bytes<T>(tensor.offset) +
                                (where.offset + e - where.begin) * step_of<T>(tensor);
        const double value = static_cast<double>(arena.at(static_cast<std::size_t>(at)));
        double& element = logical_element(matrix, part, e);
        if (!std::isnan(element) && element != value) {
          throw std::logic_error("rank " + std::to_string(rank.program.rank) +
                                 " disagrees about an element of " + part.logical);
        }
        element = value;
      }
    }
  }
  for (const auto& [name, matrix] : tensors) {
    if (std::ranges::any_of(matrix.values, [](double value) { return std::isnan(value); })) {
      throw std::logic_error("no rank holds some element of " + name + ", or it is no number");
    }
  }
  return tensors;
}

template class HostBackend<float>;
template class HostBackend<double>;

}  // namespace shardplan
