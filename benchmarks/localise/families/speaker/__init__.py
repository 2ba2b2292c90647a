"""Speaker verification in the manner of ECAPA-TDNN, trained with an angular margin."""
