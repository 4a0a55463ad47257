#include "validator/host/collective.h"

namespace shardplan {
namespace {

// Part `index` of `count` equal parts of a view, or the view that stands for it.
template <class T>
struct Part {
  const HostView<T>& view;
  std::int64_t first = 0;
  std::int64_t elements = 0;

  T& operator[](std::int64_t element) const { return view[first + element]; }
};

template <class T>
Part<T> part_of(const std::vector<HostView<T>>& views, std::int64_t index, std::int64_t count) {
  if (views.size() > 1) {
    const HostView<T>& view = views[static_cast<std::size_t>(index)];
    return {.view = view, .first = 0, .elements = view.elements()};
  }
  const std::int64_t elements = views[0].elements() / count;
  return {.view = views[0], .first = index * elements, .elements = elements};
}

// The sum over the members of a part of their inputs, in the order of the members.
template <class T>
std::vector<T> summed(const HostInputs<T>& inputs, std::int64_t index, std::int64_t count) {
  std::vector<T> sum;
  for (const std::vector<HostView<T>>& views : inputs) {
    const Part<T> part = part_of(views, index, count);
    sum.resize(static_cast<std::size_t>(part.elements), T{0});
    for (std::size_t e = 0; e < sum.size(); ++e) { sum[e] += part[static_cast<std::int64_t>(e)]; }
  }
  return sum;
}

template <class T>
void write(const HostView<T>& view, const std::vector<T>& values) {
  for (std::size_t e = 0; e < values.size(); ++e) {
    view[static_cast<std::int64_t>(e)] = values[e];
  }
}

template <class T>
void gather(const HostInputs<T>& inputs, const std::vector<HostView<T>>& out) {
  const auto count = static_cast<std::int64_t>(inputs.size());
  for (std::int64_t member = 0; member < count; ++member) {
    const HostView<T>& in = inputs[static_cast<std::size_t>(member)][0];
    const Part<T> part = part_of(out, member, count);
    if (&part[0] == in.data) {
      continue;  // in place
    }
    for (std::int64_t e = 0; e < part.elements; ++e) { part[e] = in[e]; }
  }
}

// What the others have for this member.
template <class T>
void exchange(const HostInputs<T>& inputs, std::int64_t self, const std::vector<HostView<T>>& out) {
  const auto count = static_cast<std::int64_t>(inputs.size());
  for (std::int64_t member = 0; member < count; ++member) {
    if (member != self) {
      const Part<T> from = part_of(inputs[static_cast<std::size_t>(member)], self, count);
      const Part<T> to = part_of(out, member, count);
      for (std::int64_t e = 0; e < to.elements; ++e) { to[e] = from[e]; }
    }
  }
}

// Rows of all members that chose one of this member's experts. in: rows, choices, where they go,
// and their weights, if any.
template <class T>
void dispatch(const HostInputs<T>& inputs, std::int64_t self, const HostArguments<T>& a) {
  const std::int64_t run = self / a.attributes.copies;
  for (const std::vector<HostView<T>>& theirs : inputs) {
    const HostView<T>& x = theirs[0];
    for (std::int64_t i = 0; i < theirs[1].elements(); ++i) {
      const auto expert = static_cast<std::int64_t>(theirs[1][i]);
      const auto row = static_cast<std::int64_t>(theirs[2][i]);
      if (expert / a.attributes.experts != run || row >= a.out[0].rows) {
        continue;
      }
      for (std::int64_t j = 0; j < x.cols; ++j) { a.out[0](row, j) = x(i / theirs[1].cols, j); }
      if (theirs[3].present()) {
        a.out[1](row, 0) = theirs[3][i];
      }
    }
  }
}

// What the experts of this member's choices made of its rows.
template <class T>
void combine(const HostInputs<T>& inputs, const HostArguments<T>& a) {
  const HostView<T>& choices = a.in[1];
  for (std::int64_t e = 0; e < a.out[0].elements() && !a.attributes.accumulate; ++e) {
    a.out[0][e] = 0;
  }
  for (std::int64_t i = 0; i < choices.elements(); ++i) {
    const auto expert = static_cast<std::int64_t>(choices[i]);
    const auto row = static_cast<std::int64_t>(a.in[2][i]);
    const bool fits = row < a.in[0].rows;
    const std::int64_t first = expert / a.attributes.experts * a.attributes.copies;
    T scalar = 0;
    for (std::int64_t copy = 0; copy < a.attributes.copies && fits; ++copy) {
      const std::vector<HostView<T>>& theirs = inputs[static_cast<std::size_t>(first + copy)];
      for (std::int64_t j = 0; j < a.out[0].cols; ++j) {
        a.out[0](i / choices.cols, j) += theirs[0](row, j);
      }
      scalar += theirs[3].present() ? theirs[3](row, 0) : 0;
    }
    if (a.out[1].present()) {
      a.out[1][i] = scalar;
    }
  }
}

}  // namespace

template <class T>
void complete_collective(const Operation& operation, const HostInputs<T>& inputs, std::int64_t self,
                         const HostArguments<T>& arguments,
                         const std::function<void()>& all_have_read) {
  const auto count = static_cast<std::int64_t>(inputs.size());
  switch (operation.kind) {
    case OpKind::kAllGather: gather(inputs, arguments.out); break;
    case OpKind::kRingShift: {
      const HostView<T> in = inputs[static_cast<std::size_t>((self + count - 1) % count)][0];
      for (std::int64_t e = 0; e < in.elements(); ++e) { arguments.out[0][e] = in[e]; }
      break;
    }
    case OpKind::kExchange: exchange(inputs, self, arguments.out); break;
    case OpKind::kExpertDispatch: dispatch(inputs, self, arguments); break;
    case OpKind::kExpertCombine: combine(inputs, arguments); break;
    default: {  // sums, which may be in place
      const bool is_whole = operation.kind == OpKind::kAllReduce;
      const std::vector<T> sum = summed(inputs, is_whole ? 0 : self, is_whole ? 1 : count);
      all_have_read();
      write(arguments.out[0], sum);
      return;
    }
  }
  all_have_read();
}

template void complete_collective(const Operation&, const HostInputs<float>&, std::int64_t,
                                  const HostArguments<float>&, const std::function<void()>&);
template void complete_collective(const Operation&, const HostInputs<double>&, std::int64_t,
                                  const HostArguments<double>&, const std::function<void()>&);

}  // namespace shardplan
