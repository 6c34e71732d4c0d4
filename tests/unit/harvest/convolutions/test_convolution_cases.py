import numpy as np

from tileprof.harvest import attention
from tileprof.harvest.convolutions import convolution_cases
from tileprof.harvest.convolutions.convolution_cases import costs, fitting, held_out, layers, result_sizes


def test_the_list_is_the_same_every_time_and_has_no_held_out_case():
    once, again = convolution_cases.harvested(3000), convolution_cases.harvested(3000)
    assert np.array_equal(once, again)
    assert len({tuple(row) for row in once.tolist()}) == 3000
    held_out_cases = {tuple(row) for row in held_out().tolist()}
    assert len(held_out_cases) == convolution_cases.HELD_OUT
    assert not held_out_cases & {tuple(row) for row in once.tolist()}


def test_sizes_of_results_are_those_of_pytorch():
    #        rank T groups N  in  out  d   h   w  kd kh kw sd sh sw pd ph pw dd dh dw od oh ow
    layer = np.array(
        [
            [2, 0, 1, 1, 3, 64, 1, 224, 224, 1, 7, 7, 1, 2, 2, 0, 3, 3, 1, 1, 1, 0, 0, 0],
            [2, 1, 1, 2, 64, 32, 1, 16, 16, 1, 3, 3, 1, 2, 2, 0, 1, 1, 1, 1, 1, 0, 1, 1],
            [2, 0, 8, 1, 16, 16, 1, 1, 100, 1, 1, 5, 1, 1, 1, 0, 0, 4, 1, 1, 2, 0, 0, 0],
        ]
    )
    assert result_sizes(layer).tolist() == [[1, 112, 112], [1, 32, 32], [1, 1, 100]]
    flops, largest = costs(layer)
    assert flops.tolist() == [2 * 112**2 * 3 * 64 * 49, 2 * 2 * 16**2 * 64 * 32 * 9, 2 * 100 * 16 * 2 * 5]
    assert largest.tolist() == [64 * 112**2, 2 * 32 * 32**2, 1600]


def test_layers_that_take_too_long_get_fewer_images():
    layer, _ = layers()
    batch = np.full(len(layer), 64)
    several, fits = fitting(layer, batch, np.zeros(len(layer), int))
    flops, _ = costs(several)
    assert (flops[fits] <= 5e11).all()
    assert (several[:, 3] <= layer[:, 3] * 64).all()
    assert (several[:, 3] < layer[:, 3] * 64).any()


def test_attention_trains_forward_and_backward_alike():
    cases = attention.drawn(500, 3)
    forward, backward = (
        {tuple(row[1:]) for row in cases.tolist() if row[0] == what}
        for what in (attention.Pass.TRAINING_FORWARD, attention.Pass.BACKWARD)
    )
    assert len(forward ^ backward) <= 1  # the list may end between the two
    assert not {row[0] for row in cases.tolist()} - {0, 1, 2}
