// SPDX-License-Identifier: Apache-2.0
#include "accelerate/samplers.h"
#include "data/even_part.h"
#include "python/src/binders.h"

namespace accelerate::python {

namespace py = pybind11;

void bind_data(py::module_& module) {
  py::class_<IterableShard>(module, "IterableShard")
      .def(
          py::init([](int64_t batch_size,
                      bool drop_last,
                      bool even_batches,
                      bool split_batches,
                      int rank,
                      int world_size) {
            return IterableShard(
                {batch_size, drop_last, even_batches, split_batches},
                {rank, world_size});
          }),
          py::arg("batch_size"),
          py::arg("drop_last"),
          py::arg("even_batches"),
          py::arg("split_batches"),
          py::arg("rank"),
          py::arg("world_size"))
      .def_property_readonly("round_size", &IterableShard::round_size)
      .def("is_mine", &IterableShard::is_mine, py::arg("position"))
      .def("is_repeated", &IterableShard::is_repeated, py::arg("position"))
      .def(
          "last_batch",
          [](const IterableShard& shard, int64_t num_elements) {
            auto batch = shard.last_batch(num_elements);
            return std::make_pair(std::move(batch.indices), batch.num_real);
          },
          py::arg("num_elements"))
      .def("size", &IterableShard::size, py::arg("num_elements"));
  module.def(
      "even_part",
      [](int64_t size, int rank, int world_size, bool apply_padding) {
        return even_part(size, {rank, world_size}, apply_padding);
      },
      py::arg("size"),
      py::arg("rank"),
      py::arg("world_size"),
      py::arg("apply_padding"));
  module.def(
      "random_order",
      [](int64_t size, uint64_t seed, int64_t epoch) {
        return RandomSampler(size).order(seed, epoch);
      },
      py::arg("size"),
      py::arg("seed"),
      py::arg("epoch"));
}

} // namespace accelerate::python
