"""The cards that a model is planned for are the cards that the doctor recognises."""

from volta_doctor.catalog import compat


def test_every_card_is_a_volta_card_that_is_known_by_its_device_id():
    known = compat().volta.names
    for name, card in compat().cards.items():
        assert card.device_ids, name
        for device_id in card.device_ids:
            assert known[device_id] == card.title
            assert compat().card(device_id.upper()) == name
    assert compat().card("20b0") is None


def test_no_device_id_is_two_cards():
    ids = [device_id for card in compat().cards.values() for device_id in card.device_ids]
    assert len(ids) == len({*ids})


def test_memory_is_what_nvidia_smi_and_cuda_tell(data):
    dumps = {"v100-sxm2-16gb-x8": "v100-sxm2-16gb", "v100-pcie-32gb-x2": "v100-pcie-32gb"}
    for dump, name in dumps.items():
        text = (data.parent / f"fakegpu/{dump}.json").read_text()
        assert f'"total": {compat().cards[name].memory}' in text
    for card in compat().cards.values():
        # CUDA, and so torch, sees 1 to 2 % less than the chips have.
        assert 0.975 < card.cuda_memory / card.memory < 0.995


def test_figures_follow_from_clocks():
    # 80 SMs with 8 tensor cores of 64 fused operations each, twice 4096 bits a memory cycle.
    per_mhz = 80 * 8 * 64 * 2 / 1e6
    cards = compat().cards
    assert abs(cards["v100-sxm2-16gb"].tensor_tflops - 1530 * per_mhz) < 1
    assert abs(cards["v100-pcie-16gb"].tensor_tflops - 1380 * per_mhz) < 2
    assert abs(cards["v100-sxm3-32gb"].bandwidth_gbs - 958 * 2 * 4096 / 8 / 1e3) < 1
    assert abs(cards["v100-fhhl-16gb"].tensor_tflops - 1290 * per_mhz) < 1
    assert abs(cards["v100s-pcie-32gb"].bandwidth_gbs - 1107 * 2 * 4096 / 8 / 1e3) < 1
    assert cards["v100-sxm2-16gb"].nvlink_gbs == 6 * 25
    assert cards["v100-pcie-16gb"].nvlink_gbs == 0
